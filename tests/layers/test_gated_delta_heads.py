import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import GatedDeltaHeads, LocalHeads, MultiHeadAttention, RoutingHeads
from rt_keras.layers.attention_calls import observe_attention
from tests.contract import loops
from tests.layers import checks

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")


def attention(*groups, **options):
    """A built layer in float64, with random weights."""
    layer = MultiHeadAttention(list(groups), **{"key_dim": 4, "dtype": "float64", **options})
    layer.build((None, None, 6), (None, None, 6))
    for number, weight in enumerate(layer.trainable_variables):
        weight.assign(checks.random(*weight.shape, seed=number))
    return layer


def heads(x, dense, count):
    """The output of a dense layer for each head."""
    flat = x @ dense.kernel.numpy() + (0 if dense.bias is None else dense.bias.numpy())
    return np.moveaxis(flat.reshape(*x.shape[:2], count, -1), 2, 1)


def test_gates_are_of_the_inputs_of_queries():
    group = GatedDeltaHeads(4, 4, dtype="float64")
    layer = attention(group, value_dim=3, num_key_value_heads=2)
    x, mask = checks.random(2, 17, 6, dtype="float64"), checks.padding(2, 17)
    found = layer(x, x, query_mask=mask, value_mask=mask, use_causal_mask=True)
    denses = layer.query_dense, layer.value_dense, layer.key_dense
    vectors = [heads(x, dense, n) for dense, n in zip(denses, (4, 2, 2))]
    gates = heads(x, layer.gate_dense, 4)
    assert gates.shape == (2, 4, 17, 5) and layer.gate_dense.bias is None
    outputs = loops.expected(
        "GatedDeltaHeads", group, *vectors, causal=True, gates=gates, mask=mask
    )
    merged = np.moveaxis(outputs, 1, 2).reshape(2, 17, 12)
    expected = merged @ layer.output_dense.kernel.numpy() + layer.output_dense.bias.numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


def test_the_cache_is_a_state_in_float32_and_the_last_vectors():
    layer = MultiHeadAttention([GatedDeltaHeads(2, dtype="mixed_bfloat16")], dtype="mixed_bfloat16")
    x = checks.random(2, 9, 8)
    layer(x, x, use_causal_mask=True)
    output, (cache,) = layer.prefill(x, 9, 1000)
    assert {name: x.shape.as_list() for name, x in cache.items()} == {
        "state": [2, 2, 4, 4],
        **dict.fromkeys(("query", "key", "value"), [2, 2, 3, 4]),
    }
    assert output.dtype == cache["key"].dtype == tf.bfloat16 and cache["state"].dtype == tf.float32
    _, (after,) = layer.call_with_cache(x[:, :1], (cache,), 9)
    assert after["state"].dtype == tf.float32
    (group,) = layer.head_groups
    assert {weight.dtype for weight in group.weights} == {"float32"}


def test_initial_decays_are_those_of_the_authors():
    keras.utils.set_random_seed(0)
    group = GatedDeltaHeads(1000)
    group.build((None, 1000, None, 2), (None, 1000, None, 2))
    rates, steps = tf.exp(group.a_log), tf.nn.softplus(group.dt_bias)
    assert 0 < np.min(rates) < 0.1 and 15.9 < np.max(rates) < 16
    assert np.mean(rates) == pytest.approx(8, abs=0.5)
    assert 1e-3 <= np.min(steps) < 1.1e-3 and 0.09 < np.max(steps) <= 0.1001
    assert np.median(steps) == pytest.approx(0.01, rel=0.2)


def test_groups_without_gates_are_beside_those_with_them():
    group = GatedDeltaHeads(2, 4, dtype="float64")
    others = LocalHeads(1, 4, dtype="float64"), RoutingHeads(1, 2, 4, dtype="float64")
    layer = attention(others[0], group, others[1], GatedDeltaHeads(1, 4, dtype="float64"))
    assert layer.gate_dense.kernel.shape == (6, 3 * 6)
    x = checks.random(2, 11, 6, dtype="float64")
    expected = layer(x, x, use_causal_mask=True)
    np.testing.assert_allclose(checks.decode(layer, x, 8), expected, rtol=0, atol=1e-10)
    # The gates of the second group are the first columns of the kernel.
    gates = heads(x, layer.gate_dense, 3)[:, :2]
    with observe_attention(layer) as calls:
        layer(x, x, use_causal_mask=True)
    seen = calls[0].groups
    assert [sorted(options.keys() & {"gates"}) for *_, options in seen] == [[], ["gates"]] * 2
    np.testing.assert_allclose(seen[1][2]["gates"], gates, rtol=0, atol=1e-12)


def test_a_rotary_embedding_does_not_rotate_them():
    x = checks.random(2, 11, 6, dtype="float64")
    groups = LocalHeads(2, 4, dtype="float64"), GatedDeltaHeads(2, 4, dtype="float64")
    rotary = keras_hub.layers.RotaryEmbedding(dtype="float64")
    layer = attention(*groups, num_key_value_heads=2, rotary_embedding=rotary)
    with observe_attention(layer) as calls:
        expected = layer(x, x, use_causal_mask=True)
    local, delta = (arguments for _, arguments, _ in calls[0].groups)
    # Queries and keys of the first group and of the second.
    for index, dense in ((0, layer.query_dense), (2, layer.key_dense)):
        rotated, plain = np.split(heads(x, dense, 2 * local[index].shape[1]), 2, axis=1)
        np.testing.assert_allclose(delta[index], plain, rtol=0, atol=1e-12)
        assert checks.largest_difference(local[index], rotated) > 1e-2
    np.testing.assert_allclose(checks.decode(layer, x, 8), expected, rtol=0, atol=1e-6)


def test_bad_arguments():
    with pytest.raises(ValueError, match="kernel_size must be a positive integer"):
        GatedDeltaHeads(2, kernel_size=0)
    x, vectors = checks.random(1, 9, 8), checks.random(1, 2, 9, 4)
    layer = MultiHeadAttention([GatedDeltaHeads(2)])
    layer.build(x.shape, x.shape)
    with pytest.raises(ValueError, match="GatedDeltaHeads need gates, which MultiHeadAttention"):
        GatedDeltaHeads(2)(vectors, vectors, vectors, use_causal_mask=True)
    with pytest.raises(ValueError, match="GatedDeltaHeads do not support cross-attention by"):
        layer.call_with_cross_cache(x[:, :1], layer.make_cross_cache(x), 0)


def test_weights_may_have_fewer_bits_than_the_state():
    layer = MultiHeadAttention([GatedDeltaHeads(2, dtype="float16")], 4, dtype="float16")
    assert layer(*[checks.random(2, 12, 6)] * 2, use_causal_mask=True).dtype == "float16"
