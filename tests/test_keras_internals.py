"""Tests of the private parts of Keras, KerasHub and TensorFlow that the package uses."""

import ast
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import rt_keras
from rt_keras import keras_internals

ROOT = Path(rt_keras.__file__).parent
# Methods of named tuples and of the process. They are public despite their names.
PUBLIC = {"_replace", "_asdict", "_fields", "_exit"}
MODULES = "keras.src", "keras_hub.src", "tensorflow.compiler", "tensorflow.python"


def defined_in(tree):
    """The private names that a file defines: functions, classes, and attributes of `self`."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Name(id=name):
                yield name
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name


def used_in(tree):
    """The private attributes and modules that a file uses, each with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) if name.startswith("_") and not name.startswith("__"):
                yield name, node.lineno
            case ast.ImportFrom(module=str(name)) if name.startswith(MODULES):
                yield name, node.lineno


@pytest.mark.slow
def test_private_names_of_others_are_in_one_file():
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in ROOT.rglob("*.py")}
    of_others = {name for name, _ in used_in(trees.pop(Path(keras_internals.__file__)))}
    own = {name for tree in trees.values() for name in defined_in(tree)} - of_others | PUBLIC
    assert not [
        f"{path}:{line} {name}"
        for path, tree in trees.items()
        for name, line in used_in(tree)
        if name not in own
    ]


def test_masks_of_tensors_are_those_of_layers():
    embedded = keras.layers.Embedding(2, 3, mask_zero=True)(np.array([[1, 0]]))
    assert keras_internals.mask_of(embedded).numpy().tolist() == [[True, False]]
    x = tf.constant([[[1.0], [3.0]]])
    assert keras_internals.mask_of(x) is None
    keras_internals.attach_mask(x, tf.constant([[True, False]]))
    assert float(keras.layers.GlobalAveragePooling1D()(x)[0, 0]) == 1


def test_an_optimizer_asks_for_the_sum_of_gradients_and_can_be_kept_from_it(monkeypatch):
    summed, cls = [], type(keras.optimizers.SGD())
    original = cls._all_reduce_sum_gradients

    def note(self, gradients_and_variables):
        summed.append(gradients_and_variables)
        return original(self, gradients_and_variables)

    monkeypatch.setattr(cls, "_all_reduce_sum_gradients", note)
    for keep in (False, True):
        weight, optimizer = keras.Variable([1.0]), cls(0.5)
        if keep:
            keras_internals.keep_gradients(optimizer)
        optimizer.apply_gradients([(tf.constant([1.0]), weight)])
        assert float(weight[0]) == 0.5
    assert len(summed) == 1


def test_a_function_is_traced_once_before_it_is_saved(tmp_path):
    traced, kept = [], tf.Module()

    @tf.function(input_signature=[tf.TensorSpec([])])
    def add(x):
        traced.append(x)
        return {"sum": x + 1}

    kept.add = add
    assert keras_internals.traced_for_saving(add)(tf.constant(2.0))["sum"] == 3
    tf.saved_model.save(kept, str(tmp_path), signatures={"add": add})
    assert len(traced) == 1
