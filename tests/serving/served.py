"""A tiny model, its SavedModel, and requests to it."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from rt_keras import cli, data, models
from rt_keras.layers import LocalHeads, RoutingHeads
from rt_keras.serving import export_saved_model
from tests.models.checks import make_lm

MAX_LENGTH = 128
DEFAULTS = {"max_new_tokens": 12, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "seed": 0}
TYPES = {
    "rows": tf.int32,
    "ids": tf.int32,
    "texts": tf.string,
    "prompts": tf.string,
    "max_new_tokens": tf.int32,
    "temperature": tf.float32,
    "top_p": tf.float32,
    "top_k": tf.int32,
    "seed": tf.int64,
}
# Invalid requests, and the input that the error must name.
BAD_REQUESTS = [
    ("score", {"ids": [[5, 258]]}, "ids"),
    ("score", {"ids": [[5] * (MAX_LENGTH + 1)]}, "ids"),
    ("score", {"ids": [5, 6]}, "ids"),
    ("score_text", {"texts": ["short", "a" * MAX_LENGTH]}, "texts"),
    ("score_text", {"texts": [["a"]]}, "texts"),
    ("generate", {"prompts": ["a" * MAX_LENGTH]}, "prompts"),
    ("generate", {"prompts": ["a" * 120]}, "max_new_tokens"),
    ("generate", {"prompts": ["a"], "max_new_tokens": 2**31 - 1}, "max_new_tokens"),
    ("generate", {"prompts": ["a"], "max_new_tokens": 0}, "max_new_tokens"),
    ("generate", {"prompts": ["a", "b"], "temperature": [1.0, 0.0]}, "temperature"),
    ("generate", {"prompts": ["a"], "top_p": 0.0}, "top_p"),
    ("generate", {"prompts": ["a"], "top_k": -1}, "top_k"),
    ("new_state", {"rows": 0}, "rows"),
]


def make_model(tokenizer=None, **changes):
    """Returns a language model whose random weights are as large as those of a trained one."""
    tokenizer = tokenizer or data.ByteTokenizer()
    heads = [LocalHeads(1, 8, max_relative_distance=7), RoutingHeads(1, 2, 8)]
    sizes = {"num_layers": 1, "hidden_dim": 16, "head_groups": heads}
    preprocessor = models.RoutingTransformerCausalLMPreprocessor(tokenizer, sequence_length=32)
    vocabulary_size = tokenizer.vocabulary_size()
    return make_lm(preprocessor, vocabulary_size=vocabulary_size, **{**sizes, **changes})


@functools.cache
def model():
    """Returns the served model, without XLA, as Keras compiles it on a CPU."""
    model = make_model()
    model.compile(sampler="random", jit_compile=False)
    return model


def tensors(signature, inputs):
    """Converts inputs to tensors; missing parameters of generation are DEFAULTS."""
    if signature.startswith("generate"):
        inputs = {**DEFAULTS, **inputs}
    return {name: tf.constant(value, TYPES.get(name)) for name, value in inputs.items()}


def expected_scores(model, ids, start):
    """The log-probability of each id given the previous ids, from the logits of the model."""
    before = np.pad(ids[:, :-1], [[0, 0], [1, 0]], constant_values=start)
    logits = model({"token_ids": before, "padding_mask": np.ones_like(before)})
    return tf.gather(tf.nn.log_softmax(logits), ids, batch_dims=2)


def check_refused(signature, cases, **needed):
    """Asserts that a signature refuses inputs, each with its message, besides those it needs."""
    for inputs, message in cases:
        inputs = {name: tf.constant(x) for name, x in {**needed, **inputs}.items()}
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            signature(**inputs)


class Served:
    """A SavedModel, loaded when it is first asked.

    Args:
        folder: path of its version.
    """

    def __init__(self, folder):
        self.folder = folder

    @functools.cached_property
    def loaded(self):
        return tf.saved_model.load(str(self.folder))

    def ask(self, signature, **inputs):
        """Returns the outputs of a signature as NumPy arrays."""
        outputs = self.loaded.signatures[signature](**tensors(signature, inputs))
        return {name: value.numpy() for name, value in outputs.items()}

    def texts(self, **inputs):
        """Returns the texts that the model generates, as a list of strings."""
        return [text.decode() for text in self.ask("generate", **inputs)["texts"]]


def by_command(model, folder, *options):
    """Saves a model in a folder and exports it with the command; returns what is `Served`."""
    model.save_to_preset(folder / "model")
    words = ["export", "--model", folder / "model", "--output", folder / "served", *options]
    assert cli.main([str(word) for word in words]) == 0
    return Served(folder / "served" / "1")


def export(folder):
    """Exports the model to a new folder."""
    export_saved_model(model(), folder / "rt_keras", max_length=MAX_LENGTH)
