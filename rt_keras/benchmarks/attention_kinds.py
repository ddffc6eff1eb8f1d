"""The kinds of attention that `rt-keras benchmark speed` compares, compiled with XLA."""

from functools import partial

import tensorflow as tf

from rt_keras import ops
from rt_keras.ops.attend import merge_sets

# Clustered attention: numbers of groups, of projections and, in the improved form, of top keys.
NUM_CLUSTERS, BITS, TOP_K = 100, 63, 32
# Number of hashes of the Reformer's attention.
NUM_ROUNDS = 4
# Positions in a block of the gated delta rule.
DELTA_BLOCK = 64
# MoBA: positions in a block, and number of blocks beside the query's own.
MOBA_BLOCK, MOBA_BLOCKS = 64, 8
# Content blocks: positions in a segment, keys in a block, and numbers of blocks and nodes, those of
# `rt_keras.adapt`.
SEGMENT, CONTENT_BLOCK, CONTENT_BLOCKS, CONTENT_NODES = 256, 4, 32, 32


def prepare(kind, direction, length, heads, depth, window):
    """Makes inputs and a function that runs one kind of attention on them once.

    Inputs are Gaussian noise. Centroids are random unit vectors, so clusters have similar sizes.
    The batch size is 1, and computations are in float32. All kinds except "clustered" and
    "improved_clustered" are causal. XLA compiles the function in its first run.

    Args:
        kind: string, a key of `ATTENTION`.
        direction: "forward", or "forward_backward" to include the gradients of query, key and
            value.
        length: int, the number of positions.
        heads: int, the number of heads.
        depth: int, the depth of queries, keys and values.
        window: int, the cluster size and the block size of local attention; there are
            length / window clusters.

    Returns:
        A function without arguments that returns a list of the output and the gradients, once they
        are computed.

    >>> run = prepare("local", "forward_backward", length=8, heads=2, depth=4, window=4)
    >>> [x.shape for x in run()]
    [TensorShape([1, 2, 8, 4]), TensorShape([1, 2, 8, 4]), TensorShape([1, 2, 8, 4]),
     TensorShape([1, 2, 8, 4])]
    """
    attention, backward = ATTENTION[kind], direction == "forward_backward"
    *inputs, upstream = (_noise([1, heads, length, depth], seed) for seed in range(4))
    centroids = tf.math.l2_normalize(_noise([heads, length // window, depth], 4), axis=-1)

    @tf.function(jit_compile=True)
    def compiled(inputs, centroids, upstream):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output = attention(*inputs, centroids, window)
        gradients = tape.gradient(output, inputs, upstream) if backward else []
        # If queries and keys are shared, keys have no gradient.
        return [output, *(gradient for gradient in gradients if gradient is not None)]

    def run():
        results = compiled(inputs, centroids, upstream)
        # Reading a value waits for the device.
        results[-1][0, 0, 0, 0].numpy()
        return results

    return run


def _noise(shape, seed):
    # `tf.random.stateless_normal` scales by 1 and adds 0, which takes three times the memory.
    return tf.raw_ops.StatelessRandomNormal(shape=shape, seed=[0, seed])


def _full(query, key, value, centroids, window):
    return ops.full_attention(query=query, key=key, value=value, causal=True)


def _local(query, key, value, centroids, window):
    return ops.local_attention(query=query, key=key, value=value, block_size=window, causal=True)


def _routed(query, key, value, centroids, window, op, shared=False):
    """Runs routing attention, with shared queries and keys if `shared`."""
    key = None if shared else key
    return op(query, key, value, centroids, window_size=window, causal=True)


def _local_routing(query, key, value, centroids, window):
    """Runs a window and, under one softmax, the last members of a cluster of queries."""
    options = {"routed_key": "previous_query", "causal": True, "return_logsumexp": True}
    far = ops.nearest_attention(query, None, value, centroids, window_size=window, **options)
    return merge_sets(_window(query, key, value, block_size=window), far)


def _window(query, key, value, **options):
    """Runs attention to a window, to be merged with attention to other keys."""
    given = {"query": query, "key": key, "value": value, "causal": True}
    return ops.local_attention(**given, **options, return_logsumexp=True)


def _clustered(query, key, value, centroids, window, top_k=None):
    """Runs clustered attention, with at most as many groups and top keys as positions."""
    _, heads, length, depth = query.shape
    projections = _noise([heads, BITS, depth], 5)
    counts = {"num_clusters": min(NUM_CLUSTERS, length), "top_k": top_k and min(top_k, length)}
    return ops.clustered_attention(query, key, value, projections, **counts)


def _causal_clustered(query, key, value, centroids, window):
    return ops.causal_clustered_attention(query, key, value, centroids, block_size=window)


def _lsh(query, key, value, centroids, window):
    """Runs the Reformer's attention, with as many buckets as clusters, rounded down to even."""
    pairs = max(1, query.shape[2] // window // 2)
    rotations = _noise([query.shape[1], NUM_ROUNDS, query.shape[3], pairs], 5)
    return ops.lsh_attention(query, None, value, rotations, block_size=window, causal=True)


def _gated_delta(query, key, value, centroids, window):
    """Runs the gated delta rule with normalized keys, and gates of noise."""
    log_decay, beta = (_noise(query.shape[:3], seed) for seed in (5, 6))
    return ops.gated_delta_rule(
        query,
        tf.math.l2_normalize(key, axis=-1),
        value,
        log_decay=-tf.nn.softplus(log_decay),
        beta=tf.sigmoid(beta),
        block_size=DELTA_BLOCK,
    )


def _with_blocks(query, key, value, segment_size, look_back, **blocks):
    """Runs attention to a window and, under one softmax, to the best blocks outside it."""
    near = _window(query, key, value, block_size=segment_size, look_back=look_back)
    options = {"segment_size": segment_size, "window": (segment_size, look_back)}
    far = ops.selected_blocks_attention(query, key, value, **options, **blocks, causal=True)
    return merge_sets(near, far)


def _moba(query, key, value, centroids, window):
    """Runs MoBA: the query's own block, and the earlier ones with the best mean keys."""
    blocks = {"block_size": MOBA_BLOCK, "num_blocks": MOBA_BLOCKS, "deviation_weight": 0.0}
    return _with_blocks(query, key, value, MOBA_BLOCK, 0, by_content=False, **blocks)


def _content_blocks(query, key, value, centroids, window):
    """Runs a window and blocks of similar keys, found in two steps."""
    blocks = {"block_size": CONTENT_BLOCK, "num_blocks": CONTENT_BLOCKS}
    return _with_blocks(query, key, value, SEGMENT, 1, num_nodes=CONTENT_NODES, **blocks)


ATTENTION = {
    "full": _full,
    "local": _local,
    "balanced_shared": partial(_routed, op=ops.balanced_attention, shared=True),
    "balanced_separate": partial(_routed, op=ops.balanced_attention),
    "nearest_shared": partial(_routed, op=ops.nearest_attention, shared=True),
    "nearest_separate": partial(_routed, op=ops.nearest_attention),
    "local_routing": _local_routing,
    "clustered": _clustered,
    "improved_clustered": partial(_clustered, top_k=TOP_K),
    "causal_clustered": _causal_clustered,
    "lsh": _lsh,
    "gated_delta": _gated_delta,
    "moba": _moba,
    "content_blocks": _content_blocks,
}
