"""Tests of `adapt` without heads: blocks of keys in decoders, clusters in encoders."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import rt_keras
from rt_keras.layers import ClusteredHeads
from rt_keras.layers.key_sets import FirstTokens, SelectedBlocks, Window
from rt_keras.models.adapted.architectures import attention_layers
from rt_keras.models.adapted.attention import window_of
from rt_keras.models.shared_blocks import what_differs
from tests.models.adapted.checks import make_backbone, make_inputs, outputs_of

LENGTH = 1400


def rows_of(model, inputs):
    """Returns the outputs of each row of a batch.

    The model is traced, because blocks are chosen and read in loops.
    """
    found = outputs_of(tf.function(model), inputs)
    return found.reshape(*inputs["token_ids"].shape, -1)


def key_sets_of(backbone):
    groups = [layer.head_groups[0] for layer in attention_layers(backbone)]
    return [repr(group.key_sets) for group in groups]


@pytest.fixture(scope="module")
def llama():
    return make_backbone("Llama3")


def sets_with(look_back, num_nodes):
    selected = SelectedBlocks(4, num_blocks=16, segment_size=256, num_nodes=num_nodes)
    return repr([Window(256, look_back=look_back), FirstTokens(4), selected])


def test_a_model_without_windows_searches_nodes(llama):
    assert set(key_sets_of(rt_keras.adapt(llama, keys=64))) == {sets_with(3, num_nodes=16)}


def test_the_layers_without_a_window_get_them():
    sets = sets_with(7, num_nodes=None)
    original = make_backbone("Gemma3")
    gemma = rt_keras.adapt(original, keys=64)
    windows = [window_of(layer) for layer in attention_layers(original)]
    assert [x == sets for x in key_sets_of(gemma)] == [not window for window in windows]
    assert len(set(key_sets_of(gemma))) == 2


@pytest.mark.parametrize("name", ["Gemma3", "Llama3", "Mistral"])
def test_layers_differ_only_in_their_windows(name):
    # Those that differ in nothing share programs.
    blocks = (original := make_backbone(name)).transformer_layers
    windows = [window_of(layer) for layer in attention_layers(original)]
    assert len(windows) > 1
    assert len({str(what_differs(block)) for block in blocks}) == len(set(windows))


@pytest.mark.slow
def test_with_keys_for_all_they_are_full_attention(llama):
    inputs = make_inputs(llama, LENGTH, padded=0)
    expected = rows_of(llama, inputs)
    # 376 positions are before the last window. The first four of them are always seen.
    all_keys, few = (rows_of(rt_keras.adapt(llama, keys=n), inputs) for n in (512, 16))
    np.testing.assert_allclose(all_keys, expected, atol=1e-5)
    np.testing.assert_allclose(few[:, :1024], expected[:, :1024], atol=1e-5)
    assert np.abs(few[:, 1024:] - expected[:, 1024:]).max() > 1e-4


@pytest.fixture(scope="module")
def bert():
    return make_backbone("Bert")


@pytest.mark.slow
def test_an_encoder_has_improved_clustered_attention(bert):
    inputs = make_inputs(bert, 24, padded=5)
    all_keys, few = (rt_keras.adapt(bert, keys=n) for n in (24, 4))
    (group,) = attention_layers(few)[0].head_groups
    assert type(group) is ClusteredHeads and (group.num_clusters, group.top_k) == (100, 4)
    assert attention_layers(rt_keras.adapt(bert))[0].head_groups[0].top_k == 128
    expected = outputs_of(bert, inputs)
    np.testing.assert_allclose(outputs_of(all_keys, inputs), expected, atol=1e-5)
    assert np.abs(outputs_of(few, inputs) - expected).max() > 1e-5


def test_bad_budgets(bert, llama):
    for keys in (0, 2.0, True):
        with pytest.raises(ValueError, match=f"keys must be a positive integer.*keys={keys}"):
            rt_keras.adapt(bert, keys=keys)
    for keys in (-4, 10):
        with pytest.raises(ValueError, match=f"keys must be a positive multiple of 4.*keys={keys}"):
            rt_keras.adapt(llama, keys=keys)


def test_what_needs_heads(llama):
    message = "models with both an encoder and a decoder. Received: .*BartBackbone"
    with pytest.raises(ValueError, match=message):
        rt_keras.adapt(make_backbone("Bart"))
    with pytest.raises(ValueError, match="keys can only be set without head_groups"):
        rt_keras.adapt(llama, [rt_keras.layers.FullHeads(4)], keys=4)
    with pytest.raises(ValueError, match="whose layers all have a window"):
        rt_keras.adapt(make_backbone("Mistral"))
    x = keras.Input([4, 8])
    graph = keras.Model(x, keras.layers.MultiHeadAttention(2, 4)(x, x))
    with pytest.raises(ValueError, match="head_groups is required"):
        rt_keras.adapt(graph)
