"""Relative positions for keys and values, from tables shared by all heads.

With one table for all heads, a single matrix product suffices. Broadcasting the table along the
heads would copy it for each block, and the gradient of an einsum would transpose the activations.
"""

import functools

import tensorflow as tf

from rt_keras.ops.blocks import size
from rt_keras.ops.relative import by_distance, by_key, table_of_distances


def relative_terms(arguments, query, keys, offset, causal, bias=None):
    """Computes the terms of relative positions for the logits and values of blocks.

    Args:
        arguments: dictionary that may have "relative_embeddings", `[1, 2 m + 1, depth]`, and
            "relative_values", `[1, 2 m + 1, value_depth]`.
        query: `[batch, heads, blocks, queries, depth]`, scaled.
        keys: int, number of keys in a block's window.
        offset: int, index of the block's first query in its window.
        causal: bool, whether the block is the last in its window and later keys are ignored.
        bias: another bias of the logits to add, or None. Defaults to None.

    Returns:
        A dictionary of "bias", `[batch, heads, blocks, queries, keys]`, and "relative_values", the
        function of the attention weights that sums relative values. Each is None if there is none.
    """
    values = None
    if "relative_embeddings" in arguments:
        relative = window_bias(query, arguments["relative_embeddings"], keys, offset, causal)
        bias = relative if bias is None else bias + relative
    if "relative_values" in arguments:
        table = arguments["relative_values"]
        values = functools.partial(window_values, embeddings=table, offset=offset, causal=causal)
    return {"bias": bias, "relative_values": values}


def window_bias(query, embeddings, keys, offset, causal):
    """Computes `rt_keras.ops.relative.window_bias` from one table `[1, 2 m + 1, depth]`."""
    queries = size(query, 3)
    columns = keys + (1 if causal else queries)
    table = table_of_distances(embeddings, columns, offset + queries - 1, query.dtype)
    return by_key(_product(query, table[0], transpose=True), keys)


def window_values(weights, embeddings, offset, causal):
    """Sums relative values, where query a and key j of a block are `a + offset - j` apart.

    ```
    output_a = sum_j weights_aj embeddings[clip(a + offset - j, -m, m) + m]
    ```

    Args:
        weights: `[batch, heads, blocks, queries, keys]`.
        embeddings: `[1, 2 m + 1, depth]`, for the distances -m ... m.
        offset: int, index of the block's first query in its window.
        causal: bool, whether the block is the last in its window and all later keys of a query have
            the same weight: 0, unless the query has no keys.

    Returns:
        `[batch, heads, blocks, queries, depth]`.

    Source: Shaw et al. 2018, section 3.2, the part on values.
    """
    if not causal:
        return _sums(weights, embeddings, offset, size(weights, 3))
    queries, keys = size(weights, 3), size(weights, 4)
    later = tf.range(keys) > offset + tf.range(queries)[:, None]
    sums = _sums(tf.where(later, tf.zeros_like(weights), weights), embeddings, offset, 1)
    # If the last key is later, its weight is that of all later keys, and a constant.
    later = tf.cast(later, weights.dtype)
    later_sums = _sums(
        tf.broadcast_to(later, [1, 1, 1, queries, keys]), embeddings, offset, queries
    )
    return sums + tf.stop_gradient(weights[..., -1:]) * later[:, -1:] * later_sums


def _sums(weights, embeddings, offset, more):
    """Computes sums over `keys + more` distances, from the largest down."""
    queries, columns = size(weights, 3), size(weights, 4) + more
    table = table_of_distances(embeddings, columns, offset + queries - 1, weights.dtype)
    return _product(by_distance(weights, columns), table[0])


def _product(x, table, transpose=False):
    """Multiplies the last axis of `[batch, heads, blocks, n, m]` by a matrix or its transpose."""
    shape = [size(x, axis) for axis in range(5)]
    product = tf.matmul(tf.reshape(x, [-1, shape[-1]]), table, transpose_b=transpose)
    return tf.reshape(product, [*shape[:-1], size(product, 1)])
