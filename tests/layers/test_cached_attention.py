import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from rt_keras import layers
from rt_keras.layers.head_group import copy_groups
from tests.layers import checks

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")

KINDS = [
    layers.LocalHeads(2, 3, max_relative_distance=2),
    layers.RoutingHeads(2, 3, 4),
    layers.LocalRoutingHeads(2, 3, 3, 4),
    layers.FullHeads(2),
]
SHARED = layers.LocalRoutingHeads(2, 3, 3, 4, share_qk=True)


@pytest.mark.parametrize("num_key_value_heads, heads", [(4, KINDS), (None, [SHARED])])
def test_chunks_of_rows_at_their_own_rotary_positions_are_one_pass(num_key_value_heads, heads):
    rotary = keras_hub.layers.RotaryEmbedding()
    options = {"num_key_value_heads": num_key_value_heads, "rotary_embedding": rotary}
    heads = copy_groups(heads, "float64")
    layer = layers.MultiHeadAttention(heads, 4, dtype="float64", **options)
    x = checks.random(2, 15, 6, dtype="float64")
    layer.build(x.shape, x.shape)
    for weight in layer.weights:
        weight.assign_add(0.3 * checks.random(*weight.shape, seed=2, dtype="float64"))
    # Query heads that share keys share what a cache holds of them; if queries are keys, it has all.
    for of_group in layer.new_cache(2, 15):
        kept = {x.shape[1] for x in tf.nest.flatten(of_group.get("local", of_group))}
        assert kept == {1 if num_key_value_heads else 2}
    checks.chunks_are_one_pass(layer, x, 1e-6)


def test_training_drops_weights_and_collects_statistics():
    layer = layers.MultiHeadAttention([layers.RoutingHeads(2, 3, 4)], 4, dropout=0.5)
    x = checks.random(2, 6, 8)
    layer.build(x.shape, x.shape)
    states = [x for x in layer.weights if not x.trainable and "seed" not in x.path]
    before = [np.array(x) for x in states]
    first, same, other = (
        layer.call_with_cache(x, layer.new_cache(2, 6), 0, training=training)[0]
        for training in (False, False, True)
    )
    np.testing.assert_array_equal(first, same)
    assert checks.largest_difference(first, other) > 1e-3
    assert any(np.any(np.array(x) != old) for x, old in zip(states, before))


@pytest.mark.parametrize("beams, padded", [(1, False), (3, True)])
def test_recall_of_another_sequence(beams, padded):
    groups = [
        layers.FullHeads(2, max_relative_distance=2),
        layers.LocalHeads(2, 4, key_block_size=2, max_relative_distance=2),
    ]
    rotary = keras_hub.layers.RotaryEmbedding(dtype="float64") if padded else None
    options = {"num_key_value_heads": 2, "rotary_embedding": rotary, "dtype": "float64"}
    layer = layers.MultiHeadAttention(copy_groups(groups, "float64"), 4, **options)
    x, encoded = checks.random(2, 12, 8), checks.random(2, 6, 8, seed=1)
    mask = checks.padding(2, 6) if padded else None
    expected = layer(x, encoded, value_mask=mask)
    assert layer.cached_cross_attention
    cross_cache = layer.make_cross_cache(encoded, mask)
    np.testing.assert_allclose(
        layer.call_with_cross_cache(x[:, :5], cross_cache), expected[:, :5], rtol=0, atol=1e-7
    )
    for position in range(12):
        queries = np.repeat(x[:, position, None], beams, axis=0)
        found = layer.call_with_cross_cache(queries, cross_cache, position)
        one = np.repeat(expected[:, position, None], beams, axis=0)
        np.testing.assert_allclose(found, one, rtol=0, atol=1e-7)
