"""Tests of the private parts of Keras, KerasHub and TensorFlow that the package uses.

A new version that changes one of them fails here first.
"""

import ast
import inspect
import json
from pathlib import Path

import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

import rt_keras
from rt_keras import keras_internals
from tests.models.adapted.checks import make_backbone

ROOT = Path(rt_keras.__file__).parent
# Methods of named tuples and of the process. They are public despite their names.
PUBLIC = {"_replace", "_exit"}
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


class Pair(keras.layers.Layer):
    """Two layers, one of which holds another."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.first = keras.Sequential([keras.layers.Dense(2, name="inner")], name="first")
        self.second = keras.layers.Dense(3, name="second")

    def call(self, x):
        return self.second(self.first(x))


def test_layers_are_found_and_take_the_place_of_others_in_one_that_is_built():
    pair, x = Pair(), np.ones([1, 4], "float32")
    found = keras_internals.all_layers_of(pair)
    assert sorted(x.name for x in found) == ["first", "inner", "second"]
    pair(x)
    new = keras.layers.Dense(5, name="new")
    new.build([1, 2])
    keras_internals.replace_layer(pair, "second", new)
    assert pair(x).shape == (1, 5)
    assert [x.name for x in keras_internals.layers_of(pair)] == ["first", "new"]
    assert {weight.path for weight in new.weights} < {weight.path for weight in pair.weights}


def small_backbone():
    return keras_hub.models.GPT2Backbone(11, 1, 2, 8, 8, max_sequence_length=6)


def test_parts_of_layers_are_public_or_private():
    block = small_backbone().transformer_layers[0]
    attention = getattr(block, keras_internals.SELF_ATTENTION)
    dense = keras_internals.part_of(attention, "query_dense")
    assert dense is attention._query_dense
    assert keras_internals.part_of(attention, "no_such_part", None) is None
    with pytest.raises(AttributeError, match="no_such_part"):
        keras_internals.part_of(attention, "no_such_part")


def test_blocks_make_masks_of_pairs_by_the_names_that_are_known():
    gemma = keras_hub.models.Gemma3Backbone
    names = {
        keras_hub.layers.TransformerDecoder: keras_internals.PAIR_MASK,
        type(small_backbone().transformer_layers[0]): keras_internals.PAIR_MASK,
        inspect.getmodule(gemma).Gemma3DecoderBlock: keras_internals.PAIR_MASK_OF_GEMMA,
    }
    for block, name in names.items():
        assert inspect.isfunction(getattr(block, name, None)), block


def test_masks_of_tensors_are_those_of_layers():
    embedded = keras.layers.Embedding(2, 3, mask_zero=True)(np.array([[1, 0]]))
    assert keras_internals.mask_of(embedded).numpy().tolist() == [[True, False]]
    x = tf.constant([[[1.0], [3.0]]])
    assert keras_internals.mask_of(x) is None
    keras_internals.attach_mask(x, tf.constant([[True, False]]))
    assert float(keras.layers.GlobalAveragePooling1D()(x)[0, 0]) == 1


def test_a_variable_begins_with_what_it_is_told_before_its_scope_ends():
    with keras.StatelessScope():
        layer = keras.layers.Dense(2)
        layer.build([None, 3])
        kernel = layer.kernel
        assert not keras_internals.is_initialized(kernel)
        keras_internals.initialize_by(kernel, lambda shape, dtype=None: tf.fill(shape, 7.0))
    assert keras_internals.is_initialized(kernel)
    np.testing.assert_array_equal(kernel, np.full([3, 2], 7.0))


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


def test_fit_and_evaluate_look_at_a_batch_first():
    seen = []

    class Model(keras_internals.FirstBatch, keras.Model):
        def look_at_batch(self, look, iterator, data_batch):
            seen.append((iterator is not None, data_batch is not None, self.built))
            look(iterator, data_batch)

    x = keras.Input([2])
    model = Model(x, keras.layers.Dense(1)(x))
    model.compile("sgd", "mse", jit_compile=False)
    data = np.ones([2, 2]), np.ones([2, 1])
    model.fit(*data, verbose=0)
    model.evaluate(*data, verbose=0)
    model.train_on_batch(*data)
    assert seen == [(True, False, True)] * 2 + [(False, True, True)]


def test_kerashub_asks_for_the_check_of_special_tokens(sentence_piece_model):
    class Tokenizer(keras_internals.SpecialTokens, keras_hub.tokenizers.SentencePieceTokenizer):
        checked = False

        def check_special_tokens(self):
            self.checked = True

    assert Tokenizer(sentence_piece_model).checked


def test_presets_are_found_by_file_loader_and_class(tmp_path):
    small_backbone().save_to_preset(str(tmp_path))
    preset = str(tmp_path)
    path = keras_internals.preset_file(preset, "config.json")
    config = json.loads(Path(path).read_text(encoding="utf-8"))
    assert keras_internals.saved_class(config) is keras_hub.models.GPT2Backbone
    loader = keras_internals.preset_loader(preset)
    assert loader.check_backbone_class() is keras_hub.models.GPT2Backbone
    with pytest.raises(FileNotFoundError):
        keras_internals.preset_file(preset, "no_such_file.json")


def test_the_loader_of_weights_has_the_methods_that_are_replaced():
    loader = keras_internals.weight_loader()
    for name, arguments in {
        "get_tensor": ["self", "hf_weight_key"],
        "port_weight": ["self", "keras_variable", "hf_weight_key", "hook_fn"],
        "get_prefixed_key": ["self", "hf_weight_key", "dict_like"],
    }.items():
        assert list(inspect.signature(getattr(loader, name)).parameters) == arguments


@pytest.mark.parametrize("family", ["GPT2", "Gemma3"])
def test_prompts_are_read_into_a_cache(family):
    cls = getattr(keras_hub.models, f"{family}CausalLM")
    task = cls(backbone=make_backbone(family), preprocessor=None)
    ids = np.arange(1, 9)[None]
    hidden, cache = keras_internals.build_cache(task, ids)
    expected = task.backbone({"token_ids": ids, "padding_mask": np.ones_like(ids)})
    np.testing.assert_allclose(hidden, expected, atol=1e-4)
    # The last position again.
    logits, _, _ = task.call_with_cache(ids[:, -1:], cache, 7)
    all_logits = task.backbone.token_embedding(hidden, reverse=True)
    np.testing.assert_allclose(logits[:, 0], all_logits[:, -1], atol=1e-4)


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
