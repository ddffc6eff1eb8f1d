import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import LocalHeads, MultiHeadAttention, NativeSparseHeads
from tests.contract import loops
from tests.layers import checks


def attention(group, **options):
    """A built layer in float64, with random weights."""
    layer = MultiHeadAttention([group], **{"key_dim": 4, "dtype": "float64", **options})
    layer.build((None, None, 6), (None, None, 6))
    for number, weight in enumerate(layer.trainable_variables):
        weight.assign(checks.random(*weight.shape, seed=number))
    return layer


def heads(x, dense, count):
    """The output of a dense layer for each head."""
    flat = x @ dense.kernel.numpy() + (0 if dense.bias is None else dense.bias.numpy())
    return np.moveaxis(flat.reshape(*x.shape[:2], count, -1), 2, 1)


@pytest.mark.parametrize("key_heads", [None, 2])
def test_equation_of_the_layer(key_heads):
    group = NativeSparseHeads(4, 2, 4, 5, dtype="float64")
    layer = attention(group, value_dim=3, num_key_value_heads=key_heads)
    x, mask = checks.random(2, 17, 6, dtype="float64"), checks.padding(2, 17)
    found = layer(x, x, query_mask=mask, value_mask=mask, use_causal_mask=True)
    denses = layer.query_dense, layer.value_dense, layer.key_dense
    vectors = [heads(x, dense, n) for dense, n in zip(denses, (4, *[key_heads or 4] * 2))]
    gates = heads(x, layer.gate_dense, 4)
    assert gates.shape == (2, 4, 17, 3) and layer.gate_dense.bias is None
    outputs = loops.expected(group, *vectors, causal=True, gates=gates, mask=mask)
    merged = np.moveaxis(outputs, 1, 2).reshape(2, 17, 12)
    expected = merged @ layer.output_dense.kernel.numpy() + layer.output_dense.bias.numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


def test_decoding_and_configuration():
    group = NativeSparseHeads(2, 2, 4, 5)
    layer, x = MultiHeadAttention([group]), checks.random(2, 23, 8)
    expected = layer(x, x, use_causal_mask=True)
    np.testing.assert_allclose(checks.decode(layer, x, 11), expected, rtol=0, atol=1e-5)
    checks.config_makes_an_equal_layer(layer, x, x, use_causal_mask=True)
    (cache,) = layer.new_cache(2, 23)
    assert {name: x.shape.as_list() for name, x in cache.items()} == {
        "key": [2, 2, 24, 4],
        "value": [2, 2, 24, 4],
        "key_mean": [2, 2, 12, 4],
        "value_mean": [2, 2, 12, 4],
    }


def test_the_cache_has_the_shared_keys_alone():
    layer = attention(NativeSparseHeads(4, 2, 4, 5, dtype="float64"), num_key_value_heads=2)
    (cache,) = layer.new_cache(3, 8)
    assert {x.shape[1] for x in cache.values()} == {2}
    x = checks.random(2, 15, 6, dtype="float64")
    expected = layer(x, x, use_causal_mask=True)
    np.testing.assert_allclose(checks.decode(layer, x, 5), expected, rtol=0, atol=1e-10)


def test_keys_are_rotated():
    x = checks.random(2, 15, 6, dtype="float64")
    rotary = keras_hub.layers.RotaryEmbedding(dtype="float64")
    plain, rotated = (
        attention(NativeSparseHeads(2, 2, 4, 5, dtype="float64"), rotary_embedding=embedding)
        for embedding in (None, rotary)
    )
    expected = rotated(x, x, use_causal_mask=True)
    assert checks.largest_difference(plain(x, x, use_causal_mask=True), expected) > 1e-2
    np.testing.assert_allclose(checks.decode(rotated, x, 5), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("static", [True, False])
def test_empty_batches_and_sequences(static):
    checks.takes_empty_batches_and_sequences(NativeSparseHeads(2, 2, 4, 5), static)


def test_every_weight_trains():
    layer, x = attention(NativeSparseHeads(2, 2, 4, 5, dtype="float64")), checks.random(2, 17, 6)
    checks.trains_every_weight(layer, x, x, use_causal_mask=True, training=True)


def test_mixed_precision():
    group = NativeSparseHeads(2, 2, 4, 5, dtype="mixed_bfloat16")
    layer, x = MultiHeadAttention([group], dtype="mixed_bfloat16"), checks.random(2, 17, 8)
    expected = layer(x, x, use_causal_mask=True)
    output, cache = layer.prefill(x[:, :16], 16, 17)
    assert {x.dtype for x in (expected, output, *cache[0].values())} == {tf.bfloat16}
    output, _ = layer.call_with_cache(x[:, 16:], cache, 16)
    difference = tf.cast(output - expected[:, 16:], tf.float32)
    np.testing.assert_allclose(difference, tf.zeros_like(difference), atol=0.05)


@pytest.mark.parametrize("block_size, length", [(2, 12), (16, 100)], ids=["gathered", "in tiles"])
def test_saving(block_size, length, tmp_path):
    inputs = keras.Input([length, 6])
    layer = MultiHeadAttention([LocalHeads(1, 4), NativeSparseHeads(2, block_size, 4, 5)], 4)
    model = keras.Model(inputs, layer(inputs, inputs, use_causal_mask=True))
    for number, weight in enumerate(layer.trainable_variables):
        weight.assign(checks.random(*weight.shape, seed=number))
    checks.saves_and_loads(model, checks.random(2, length, 6), tmp_path)


@pytest.mark.parametrize("name", ["block_size", "num_blocks", "window_size"])
def test_bad_sizes(name):
    with pytest.raises(ValueError, match=f"NativeSparseHeads: {name} must be a positive integer"):
        NativeSparseHeads(2, **{name: 0})


def test_unsupported_calls_are_refused():
    x = checks.random(1, 9, 8)
    layer = MultiHeadAttention([NativeSparseHeads(2)])
    assert not layer.head_groups[0].can_be_stateful
    with pytest.raises(ValueError, match="NativeSparseHeads need use_causal_mask=True"):
        layer(x, x)
    with pytest.raises(ValueError, match="as many keys as queries"):
        layer(x, x[:, :5], use_causal_mask=True)
    with pytest.raises(ValueError, match="NativeSparseHeads have no attention weights"):
        layer(x, x, use_causal_mask=True, return_attention_scores=True)
    vectors = checks.random(1, 2, 9, 4)
    with pytest.raises(ValueError, match="NativeSparseHeads need gates, which MultiHeadAttention"):
        NativeSparseHeads(2)(vectors, vectors, vectors, use_causal_mask=True)
    with pytest.raises(ValueError, match="NativeSparseHeads do not support cross-attention by"):
        cross = layer.make_cross_cache(x)
        layer.call_with_cross_cache(x[:, :1], cross, 0)
    with pytest.raises(ValueError, match="NativeSparseHeads do not support max_relative_distance"):
        NativeSparseHeads(2, max_relative_distance=3)
