"""Softmax attention inside blocks: what every kind of attention here ends in."""

import tensorflow as tf

# Stands in for minus infinity, which would turn into NaN in differences of masked logits.
MASKED = -1e30


def accumulation_dtype(dtype):
    """float64 for float64, float32 for all else: what softmax and statistics are computed in."""
    return tf.float64 if dtype == tf.float64 else tf.float32


def attend(
    query,
    key,
    value,
    allowed,
    *,
    bias=None,
    relative_bias=None,
    relative_values=None,
    mean_of_none=False,
    dropout=0.0,
    seed=None,
):
    """Attends from each block's queries to the same block's keys.

    ```
    output_i = sum_j p_ij (value_j + s_ij) / sum_j p_ij,    p_ij = exp(query_i · key_j + bias_ij)
    ```

    over the keys j that `allowed` gives to query i. A query without keys gets 0, and no gradient.

    Logits lie key-major, `[..., keys, queries]`: the softmax then reduces over rows, which
    vectorises on every backend of XLA without reassociating sums. With relative positions, which
    are made query by query, they lie `[..., queries, keys]`: that costs less than a transposition.

    Args:
        query: `[..., queries, depth]`, already scaled.
        key: `[..., keys, depth]`.
        value: `[..., keys, value_depth]`.
        allowed: bool, broadcastable to `[..., keys, queries]`.
        bias: optional, broadcastable to `[..., keys, queries]`, added to the logits.
        relative_bias: optional, `[..., queries, keys]`, added too.
        relative_values: optional function of p `[..., queries, keys]` that returns the sums
            sum_j p_ij s_ij `[..., queries, value_depth]`.
        mean_of_none: whether a query without keys gets the mean over all keys in place of 0, as
            in implementations that subtract a large number from masked logits.
        dropout: share of the attention weights set to 0.
        seed: int `[2]`, needed where `dropout` is above 0.

    Returns:
        The output `[..., queries, value_depth]` in value's dtype, and the logarithm of the
        sum of p `[..., queries]`, `MASKED` where there was no key.
    """
    dtype = accumulation_dtype(query.dtype)
    by_query = relative_bias is not None or relative_values is not None
    keys_axis = -1 if by_query else -2
    if by_query:
        allowed = tf.linalg.matrix_transpose(allowed)
        bias = None if bias is None else tf.linalg.matrix_transpose(bias)
        logits = tf.matmul(query, key, transpose_b=True)
    else:
        logits = tf.matmul(key, query, transpose_b=True)
    logits = tf.cast(logits, dtype)
    for added in (bias, relative_bias):
        if added is not None:
            logits += tf.cast(added, dtype)
    logits = tf.where(allowed, logits, tf.constant(MASKED, dtype))
    top = tf.stop_gradient(tf.reduce_max(logits, axis=keys_axis, keepdims=True))
    weights = tf.exp(logits - top)
    total = tf.reduce_sum(weights, axis=keys_axis)
    top = tf.squeeze(top, axis=keys_axis)
    if dropout:
        keep = tf.random.stateless_uniform(tf.shape(weights), seed) >= dropout
        weights = tf.where(keep, weights / (1.0 - dropout), tf.zeros_like(weights))
    weights = tf.cast(weights, value.dtype)
    output = tf.matmul(weights, value, transpose_a=not by_query)
    if relative_values is not None:
        output += relative_values(weights)
    found = (top > MASKED / 2) | mean_of_none
    inverse_total = tf.where(found, 1.0 / total, tf.zeros_like(total))
    output *= tf.cast(inverse_total, value.dtype)[..., None]
    log_total = tf.where(found, top + tf.math.log(total), tf.constant(MASKED, dtype))
    return output, log_total
