import numpy as np
import pytest
import tensorflow as tf

from rt_keras import ops
from rt_keras.benchmarks import kinds
from rt_keras.layers import Heads
from rt_keras.layers.key_sets import Cluster, SelectedBlocks, Window

SIZES = {"length": 24, "heads": 2, "depth": 4, "window": 6}


def inputs():
    """The noise that `prepare` draws, drawn again."""
    query, key, value, upstream = (
        tf.random.stateless_normal([1, 2, 24, 4], [0, seed]) for seed in range(4)
    )
    centroids = tf.random.stateless_normal([2, 4, 4], [0, 4])
    centroids = tf.math.l2_normalize(centroids, axis=-1)
    return query, key, value, upstream, centroids


def noise(seed, *inner):
    return tf.random.stateless_normal([1, 2, 24, *inner], [0, seed])


def projections(*shape):
    return tf.random.stateless_normal(shape, [0, 5])


def local_routing(query, key, value, centroids):
    heads = Heads(2, [Window(6), Cluster(4, window_size=6, kernel_size=1, scaled=False)])
    heads(query, value, key)
    heads.centroids.assign(centroids)
    return heads(query, value, key, use_causal_mask=True)


EXPECTED = {
    "full": lambda q, k, v, c: ops.full_attention(q, k, v, causal=True),
    "local": lambda q, k, v, c: ops.local_attention(q, k, v, block_size=6, causal=True),
    "balanced_shared": lambda q, k, v, c: ops.balanced_attention(
        q, None, v, c, window_size=6, causal=True
    ),
    "balanced_separate": lambda q, k, v, c: ops.balanced_attention(
        q, k, v, c, window_size=6, causal=True
    ),
    "nearest_shared": lambda q, k, v, c: ops.nearest_attention(
        q, None, v, c, window_size=6, causal=True
    ),
    "nearest_separate": lambda q, k, v, c: ops.nearest_attention(
        q, k, v, c, window_size=6, causal=True
    ),
    "local_routing": local_routing,
    # There are at most as many groups and top keys as positions.
    "clustered": lambda q, k, v, c: ops.clustered_attention(
        q, k, v, projections(2, 63, 4), num_clusters=24
    ),
    "improved_clustered": lambda q, k, v, c: ops.clustered_attention(
        q, k, v, projections(2, 63, 4), num_clusters=24, top_k=24
    ),
    "causal_clustered": lambda q, k, v, c: ops.causal_clustered_attention(q, k, v, c, block_size=6),
    "lsh": lambda q, k, v, c: ops.lsh_attention(
        q, None, v, projections(2, 4, 4, 2), block_size=6, causal=True
    ),
    "gated_delta": lambda q, k, v, c: ops.gated_delta_rule(
        q,
        tf.math.l2_normalize(k, axis=-1),
        v,
        log_decay=-tf.nn.softplus(noise(5)),
        beta=tf.sigmoid(noise(6)),
    ),
    "native_sparse": lambda q, k, v, c: ops.native_sparse_attention(
        q,
        k,
        v,
        gates=tf.sigmoid(noise(5, 3)),
        block_size=64,
        num_blocks=16,
        window_size=6,
    ),
    # In so short a sequence, all keys are in the window.
    "moba": lambda q, k, v, c: ops.full_attention(q, k, v, causal=True),
    "content_blocks": lambda q, k, v, c: ops.full_attention(q, k, v, causal=True),
}
# The same as layers.
BLOCKS = {
    "moba": [
        Window(64, look_back=0),
        SelectedBlocks(64, num_blocks=8, segment_size=64, by_content=False, deviation_weight=0.0),
    ],
    "content_blocks": [Window(256), SelectedBlocks(4, num_blocks=32, num_nodes=32)],
}


@pytest.mark.end_to_end
@pytest.mark.parametrize("kind", kinds.ATTENTION)
def test_a_kind_runs_what_its_name_says_with_its_gradients(kind):
    query, key, value, upstream, centroids = inputs()
    with tf.GradientTape() as tape:
        tape.watch([query, key, value])
        output = EXPECTED[kind](query, key, value, centroids)
    gradients = tape.gradient(output, [query, key, value], upstream)
    assert (gradients[1] is None) == (kind.endswith("shared") or kind == "lsh")

    found = kinds.prepare(kind, "forward_backward", **SIZES)()
    wanted = [output, *(gradient for gradient in gradients if gradient is not None)]
    assert len(found) == len(wanted)
    for x, y in zip(found, wanted):
        np.testing.assert_allclose(x, y, atol=1e-5)


@pytest.mark.end_to_end
@pytest.mark.parametrize("kind", BLOCKS)
def test_kinds_with_blocks_are_those_of_the_layers(kind):
    sizes = {"length": 1024, "heads": 2, "depth": 4, "window": 256}
    (found,) = kinds.prepare(kind, "forward", **sizes)()
    query, key, value = (
        tf.random.stateless_normal([1, 2, 1024, 4], [0, seed]) for seed in range(3)
    )
    expected = Heads(2, BLOCKS[kind])(query, value, key, use_causal_mask=True)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_forward_computes_no_gradient():
    found = kinds.prepare("local", "forward", **SIZES)()
    query, key, value, _, centroids = inputs()
    np.testing.assert_allclose(*found, EXPECTED["local"](query, key, value, centroids), atol=1e-5)
