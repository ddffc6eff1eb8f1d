"""Softmax attention as in the authors' code, with relative values."""

import tensorflow as tf

from rt_keras.ops.attend import (
    MASKED,
    accumulation_dtype,
    drop,
    pair_logits,
    row_maximum,
    weighted_sums,
    where_all,
)
from rt_keras.ops.blocks import repeat_heads


def attend(query, key, value, allowed, *, bias=None, relative_values=None, dropout=0.0, seed=None):
    """Computes attention from each block's queries to the same block's keys.

    ```
    output_i = sum_j p_ij (value_j + s_ij),    p_ij = softmax_j(query_i · key_j + bias_ij)
    ```

    over the keys j that `allowed` permits for query i. A query without keys weights all keys
    equally. Weights are normalized before values are summed, as in that code, because rounding
    decides which of two equally near positions joins a cluster of the next layer.

    Args:
        query: `[..., queries, depth]`, already scaled.
        key: `[..., keys, depth]`.
        value: `[..., keys, value_depth]`.
        allowed: tuple of bool masks, broadcastable to `[..., queries, keys]`.
        bias: broadcastable to `[..., queries, keys]`, added to the logits; or None.
        relative_values: function that maps p to the sums sum_j p_ij s_ij; or None.
        dropout: float, fraction of the attention weights set to 0.
        seed: int `[2]`, required if `dropout` is above 0.

    Returns:
        `[..., queries, value_depth]`, in value's dtype.
    """
    dtype = accumulation_dtype(query.dtype)
    logits = tf.cast(pair_logits(query, key), dtype)
    if bias is not None:
        logits += tf.cast(bias, dtype)
    masked = tf.constant(MASKED, dtype)
    top = tf.stop_gradient(row_maximum(where_all(allowed, logits, masked)))
    nothing = tf.where(top > MASKED / 2, masked, 0.0)[..., None]
    weights = tf.exp(where_all(allowed, logits - top[..., None], nothing))
    weights /= tf.reduce_sum(weights, axis=-1, keepdims=True)
    weights = tf.cast(drop(weights, dropout, seed), value.dtype)
    output = weighted_sums(weights, value)
    return output if relative_values is None else output + relative_values(weights)


def attend_step(
    query, key, value, allowed, distance, *, relative_embeddings=None, relative_values=None
):
    """Computes attention from one or more queries at the same position to cached keys.

    Args:
        query: `[batch, heads, queries, depth]`.
        key: `[batch, key_heads, keys, depth]`.
        value: `[batch, key_heads, keys, value_depth]`.
        allowed: bool, broadcastable to `[batch, heads, queries, keys]`.
        distance: int `[keys]` or `[batch, 1, keys]`, distance from the query back to each key.
        relative_embeddings: `[1, 2 m + 1, depth]`; or None.
        relative_values: `[1, 2 m + 1, value_depth]`; or None.

    Returns:
        `[batch, heads, queries, value_depth]`.
    """
    key, value = (repeat_heads(x, query.shape[1]) for x in (key, value))
    query = query * query.shape[-1] ** -0.5
    bias = values = None
    if relative_embeddings is not None:
        keys_by_distance = _at_distances(relative_embeddings, distance, query.dtype)
        bias = tf.matmul(query, keys_by_distance, transpose_b=True)
    if relative_values is not None:
        values_by_distance = _at_distances(relative_values, distance, value.dtype)

        def values(weights):
            return tf.matmul(weights, values_by_distance)

    return attend(query, key, value, (allowed,), bias=bias, relative_values=values)


def _at_distances(table, distance, dtype):
    far = table.shape[1] // 2
    return tf.cast(tf.gather(table[0], tf.clip_by_value(distance, -far, far) + far), dtype)
