import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import LocalHeads, ProductKeyMemory, TransformerBlock
from rt_keras.layers.product_key_memory import memory_use
from rt_keras.models import RoutingTransformerBackbone
from tests.layers import checks

WIDTH = 6


def make_layer(**options):
    keras.utils.set_random_seed(0)
    return ProductKeyMemory(**{"num_keys": 5, "num_heads": 2, "top_k": 3, "key_dim": 4, **options})


def by_loop(layer, x):
    """Compares each position with all keys; returns outputs and the use of each value."""
    n, heads = layer.num_keys, layer.num_heads
    query = layer.query_norm(layer.query_dense(x).numpy().reshape(-1, heads, layer.key_dim)).numpy()
    keys, values = layer.keys.numpy(), layer.values.numpy()
    output, use = np.zeros([len(query), x.shape[-1]]), np.zeros(n * n)
    for i, head in np.ndindex(len(query), heads):
        first, second = np.split(query[i, head], 2)
        scores = [
            first @ keys[0, head, a] + second @ keys[1, head, b] for a in range(n) for b in range(n)
        ]
        best = np.argsort(scores)[::-1][: layer.top_k]
        weights = np.exp(np.array(scores)[best])
        weights /= weights.sum()
        output[i] += weights @ values[best]
        use[best] += weights
    return output.reshape(x.shape), use / use.sum()


@pytest.mark.parametrize("at_once", [10**9, 100])
def test_equation(at_once, monkeypatch):
    monkeypatch.setattr("rt_keras.layers.product_key_memory.GATHERED_AT_ONCE", at_once)
    layer, x = make_layer(), checks.random(2, 7, WIDTH)
    layer(x)
    expected, use = by_loop(layer, x)
    np.testing.assert_allclose(layer(x, training=True), expected, rtol=0, atol=1e-5)
    even = np.exp(-np.sum(use[use > 0] * np.log(use[use > 0]))) / 25
    np.testing.assert_allclose(layer.value_use, [np.mean(use > 0), even], rtol=1e-4)
    checks.config_makes_an_equal_layer(layer, x)
    found = tf.function(layer, jit_compile=True)(x)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_chunks_have_the_same_gradients(monkeypatch):
    layer, x = make_layer(), tf.constant(checks.random(2, 7, WIDTH))
    layer(x)
    sources, gradients = [x, *(weight.value for weight in layer.trainable_weights)], []
    for at_once in (10**9, 100):
        monkeypatch.setattr("rt_keras.layers.product_key_memory.GATHERED_AT_ONCE", at_once)
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.sin(layer(x)))
        gradients.append([tf.convert_to_tensor(g) for g in tape.gradient(loss, sources)])
    for found, expected in zip(*gradients):
        assert np.any(expected)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_padding_does_not_count():
    layer, x = make_layer(num_heads=1, top_k=1), checks.random(1, 8, WIDTH)
    layer(x, mask=np.arange(8)[None] < 1, training=True)
    # One position uses one value.
    np.testing.assert_allclose(layer.value_use, [1 / 25, 1 / 25], rtol=1e-4)


def test_bfloat16():
    layer = make_layer(dtype="mixed_bfloat16")
    assert layer(checks.random(1, 4, WIDTH)).dtype == "bfloat16"


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_keys": 0}, "num_keys must be a positive integer"),
        ({"top_k": 6}, "top_k must be at most num_keys, 5. Received: top_k=6"),
        ({"key_dim": 3}, "key_dim must be an even number"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        make_layer(**options)


def test_blocks():
    x = checks.random(2, 9, 8)
    block = TransformerBlock([LocalHeads(2, 4)], 16, product_keys=4)
    expected = block(x, use_causal_mask=True)
    checks.config_makes_an_equal_layer(block, x, use_causal_mask=True)
    _, cache = block.prefill(x[:, :5], count=5, max_length=9)
    output, _ = block.call_with_cache(x[:, 5:], cache, 5)
    np.testing.assert_allclose(output, expected[:, 5:], rtol=0, atol=1e-5)
    model = keras.Sequential([keras.Input([9, 8]), block])
    assert memory_use(model) == {"memory_0_used": 0, "memory_0_even": 0}
    block(x, use_causal_mask=True, training=True)
    assert 0 < memory_use(model)["memory_0_even"] <= memory_use(model)["memory_0_used"] <= 1
    with pytest.raises(ValueError, match="num_experts and product_keys cannot be combined"):
        TransformerBlock([LocalHeads(2, 4)], 16, num_experts=2, product_keys=4)


def test_a_backbone_has_it_in_selected_blocks():
    sizes = {"vocabulary_size": 9, "num_layers": 2, "hidden_dim": 8, "intermediate_dim": 8}
    backbone = RoutingTransformerBackbone(
        **sizes, head_groups=[LocalHeads(2, 4)], product_keys=[None, 3]
    )
    kinds = [type(block.feed_forward).__name__ for block in backbone.transformer_blocks]
    assert kinds == ["FeedForward", "ProductKeyMemory"]
    again = RoutingTransformerBackbone.from_config(backbone.get_config())
    assert again.transformer_blocks[1].product_keys == 3
    with pytest.raises(ValueError, match="each of the 2 blocks. Received: 3 numbers"):
        RoutingTransformerBackbone(**sizes, head_groups=[LocalHeads(2, 4)], product_keys=[1, 2, 3])
