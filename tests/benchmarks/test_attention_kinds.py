import numpy as np
import pytest
import tensorflow as tf

from rt_keras import ops
from rt_keras.benchmarks import attention_kinds, speed
from rt_keras.layers import Heads
from rt_keras.layers.key_sets import Cluster, SelectedBlocks, Window

SIZES = {"length": 24, "heads": 2, "depth": 4, "window": 6}


def noise(seed, *shape):
    """The noise that `prepare` draws, drawn again."""
    return tf.random.stateless_normal(shape, [0, seed])


def routed(op, query, key, value, centroids):
    return op(query, key, value, centroids, window_size=6, causal=True)


def local_routing(query, key, value, centroids):
    heads = Heads(2, [Window(6), Cluster(4, window_size=6, kernel_size=1, scaled=False)])
    heads(query, value, key)
    heads.centroids.centroids.assign(centroids)
    return heads(query, value, key, use_causal_mask=True)


EXPECTED = {
    "full": lambda q, k, v, c: ops.full_attention(q, k, v, causal=True),
    "local": lambda q, k, v, c: ops.local_attention(q, k, v, block_size=6, causal=True),
    "balanced_shared": lambda q, k, v, c: routed(ops.balanced_attention, q, None, v, c),
    "nearest_separate": lambda q, k, v, c: routed(ops.nearest_attention, q, k, v, c),
    "local_routing": local_routing,
}
# The same as layers.
BLOCKS = {
    "moba": [
        Window(64, look_back=0),
        SelectedBlocks(64, num_blocks=8, segment_size=64, by_content=False, deviation_weight=0.0),
    ],
    "content_blocks": [Window(256), SelectedBlocks(4, num_blocks=32, num_nodes=32)],
}


def test_every_kind_can_be_asked_for():
    assert speed.KINDS["attention"] == tuple(attention_kinds.ATTENTION)


@pytest.mark.weekly
@pytest.mark.parametrize("kind", EXPECTED)
def test_a_kind_runs_what_its_name_says_with_its_gradients(kind):
    query, key, value, upstream = (noise(seed, 1, 2, 24, 4) for seed in range(4))
    centroids = tf.math.l2_normalize(noise(4, 2, 4, 4), axis=-1)
    with tf.GradientTape() as tape:
        tape.watch([query, key, value])
        output = EXPECTED[kind](query, key, value, centroids)
    gradients = tape.gradient(output, [query, key, value], upstream)
    assert (gradients[1] is None) == (kind == "balanced_shared")
    found = attention_kinds.prepare(kind, "forward_backward", **SIZES)()
    wanted = [output, *(gradient for gradient in gradients if gradient is not None)]
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5)


@pytest.mark.weekly
@pytest.mark.parametrize("kind", BLOCKS)
def test_kinds_with_blocks_are_those_of_the_layers(kind):
    sizes = {"length": 1024, "heads": 2, "depth": 4, "window": 256}
    # Forward computes no gradient.
    (found,) = attention_kinds.prepare(kind, "forward", **sizes)()
    query, key, value = (noise(seed, 1, 2, 1024, 4) for seed in range(3))
    expected = Heads(2, BLOCKS[kind])(query, value, key, use_causal_mask=True)
    np.testing.assert_allclose(found, expected, atol=1e-5)
