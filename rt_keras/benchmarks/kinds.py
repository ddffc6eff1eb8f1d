"""The kinds of attention that `rt-keras benchmark attention` compares, compiled by XLA."""

import tensorflow as tf

from rt_keras import ops


def prepare(kind, direction, length, heads, depth, window):
    """Makes inputs and the function that runs one kind of attention on them once.

    Inputs are normal noise, centroids unit vectors of random direction: clusters of much the
    same size. Everything is causal, of batch 1 and float32, and compiled by XLA on the first run.

    Args:
        kind: a key of `ATTENTION`.
        direction: `"forward"`, or `"forward_backward"` with the gradients of query, key and value.
        length: positions in the sequence.
        heads: number of heads.
        depth: of queries, keys and values.
        window: members of a cluster, block of local attention; there are length / window clusters.

    Returns:
        A function without arguments. It returns the output, then the gradients, once they are
        computed.

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
        # Where queries are their own keys, the separate keys have no gradient.
        return [output, *(gradient for gradient in gradients if gradient is not None)]

    def run():
        results = compiled(inputs, centroids, upstream)
        # Waits for the device: a value that is read must have been computed.
        results[-1][0, 0, 0, 0].numpy()
        return results

    return run


def _noise(shape, seed):
    # Not `tf.random.stateless_normal`: scaling by 1 and adding 0, it holds three times the memory.
    return tf.raw_ops.StatelessRandomNormal(shape=shape, seed=[0, seed])


def _full(query, key, value, centroids, window):
    return ops.full_attention(query, key, value, causal=True)


def _local(query, key, value, centroids, window):
    return ops.local_attention(query, key, value, block_size=window, causal=True)


def _balanced_shared(query, key, value, centroids, window):
    return ops.balanced_attention(query, None, value, centroids, window_size=window, causal=True)


def _balanced_separate(query, key, value, centroids, window):
    return ops.balanced_attention(query, key, value, centroids, window_size=window, causal=True)


def _nearest_shared(query, key, value, centroids, window):
    return ops.nearest_attention(query, None, value, centroids, window_size=window, causal=True)


def _nearest_separate(query, key, value, centroids, window):
    return ops.nearest_attention(query, key, value, centroids, window_size=window, causal=True)


ATTENTION = {
    "full": _full,
    "local": _local,
    "balanced_shared": _balanced_shared,
    "balanced_separate": _balanced_separate,
    "nearest_shared": _nearest_shared,
    "nearest_separate": _nearest_separate,
}
