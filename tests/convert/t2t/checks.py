"""The golden cases: outputs of the reference implementation, and models with its weights."""

import atexit
import contextlib
import functools
import json
import pathlib
import shutil
import tempfile

import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.convert import load_t2t_checkpoint

GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "t2t_cases.zip"
ALL = pathlib.Path(__file__).parents[3].parent / "shared" / "golden" / "t2t"
SCOPE = {False: "sparse_transformer/body/", True: "sparse_imagetransformer/body/"}
DROPOUTS = (
    "layer_prepostprocess_dropout",
    "attention_dropout",
    "relu_dropout",
    "dropout",
    "target_dropout",
)


@functools.cache
def unpacked():
    """The folder of the fixtures' cases, which is deleted at the end of the process."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    shutil.unpack_archive(GOLDEN, folder.name)
    return pathlib.Path(folder.name)


def folder_of(name):
    """Returns a case's folder, from the fixtures or all cases; skips the test if there is none."""
    for cases in (unpacked(), ALL):
        if (cases / name).exists():
            return cases / name
    pytest.skip(f"needs ../shared/golden/t2t/{name}")


class Case:
    """One golden case: its checkpoint, inputs and outputs."""

    def __init__(self, name):
        folder = folder_of(name)
        described = json.loads((folder / "case.json").read_text())
        self.checkpoint = str(folder / "model.ckpt-1")
        # The case was run without dropout.
        self.hparams = {**described["hparams"], **dict.fromkeys(DROPOUTS, 0.0)}
        image = described["image"]
        self.options = {
            "vocabulary_size": described["vocab_size"],
            "image_shape": tuple(image) if image else None,
            "num_classes": described["num_classes"],
        }
        self.scope = SCOPE[bool(image)]
        self.expected = dict(np.load(folder / "expected.npz"))
        self.inputs = {
            name.removeprefix("input/"): value
            for name, value in self.expected.items()
            if name.startswith("input/")
        }

    def load(self, **options):
        """The model with the checkpoint's weights."""
        hparams = options.pop("hparams", self.hparams)
        return load_t2t_checkpoint(self.checkpoint, hparams, **{**self.options, **options})

    def variables(self):
        """The checkpoint's variables, by name."""
        reader = tf.train.load_checkpoint(self.checkpoint)
        return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


@contextlib.contextmanager
def computed_in(dtype):
    """Sets the dtype in which layers created in this context compute."""
    floatx, policy = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)
    try:
        yield
    finally:
        keras.config.set_floatx(floatx)
        keras.config.set_dtype_policy(policy)


def write_checkpoint(variables, path):
    """Writes a TensorFlow 1 checkpoint of variables by name; returns its path."""

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        made = {
            name: tf.compat.v1.Variable(value, name=f"v{i}")
            for i, (name, value) in enumerate(variables.items())
        }
        session.run(tf.compat.v1.global_variables_initializer())
        return tf.compat.v1.train.Saver(made).save(session, str(path))
