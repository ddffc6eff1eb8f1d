"""Softmax attention inside blocks: what every kind of attention here ends in."""

import tensorflow as tf

from rt_keras.ops.blocks import size

# Stands in for minus infinity, which would turn into NaN in differences of masked logits.
MASKED = -1e30

# exp() of minus this is above the smallest number of every type but float16.
MAX_EXPONENT = 80.0


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
    bound=None,
    relative_values=None,
    reference=False,
    dropout=0.0,
    seed=None,
):
    """Attends from each block's queries to the same block's keys.

    ```
    output_i = sum_j p_ij (value_j + s_ij) / sum_j p_ij,    p_ij = exp(query_i · key_j + bias_ij)
    ```

    over the keys j that `allowed` gives to query i. A query without keys gets 0, and no gradient.

    Args:
        query: `[..., queries, depth]`, already scaled.
        key: `[..., keys, depth]`.
        value: `[..., keys, value_depth]`.
        allowed: bool, broadcastable to `[..., queries, keys]`; or a tuple of such, which must all
            allow. Two masks that depend on nothing but positions stay two: combined, TensorFlow
            would keep them as one large constant of the program.
        bias: optional, broadcastable to `[..., queries, keys]`, added to the logits.
        bound: optional number that no logit exceeds, in size: that of normalised vectors without
            a bias. What is taken off all logits before exp() is then this, and a pass over them
            for their largest is saved; unless it is so large that p could underflow.
        relative_values: optional function of p `[..., queries, keys]` that returns the sums
            sum_j p_ij s_ij `[..., queries, value_depth]`.
        reference: whether to do as the code of the paper's authors, for its checkpoints alone: a
            query without keys gets the mean over all keys in place of 0, and p is normalised
            before the values are summed. The rounding is then theirs, which decides where two
            positions are as near to a centroid.
        dropout: share of the attention weights set to 0.
        seed: int `[2]`, needed where `dropout` is above 0.

    Returns:
        The output `[..., queries, value_depth]` in value's dtype, and the logarithm of the
        sum of p `[..., queries]`, `MASKED` where there was no key.
    """
    dtype = accumulation_dtype(query.dtype)
    logits = tf.cast(_logits(query, key), dtype)
    if bias is not None:
        logits += tf.cast(bias, dtype)
    masked = tf.constant(MASKED, dtype)
    masks = allowed if isinstance(allowed, tuple) else (allowed,)
    # p is above exp(-2 bound), and the gradient has the square of its sum.
    if bound is not None and 4 * bound < MAX_EXPONENT and value.dtype != tf.float16:
        top = tf.constant([bound], dtype)
    else:
        top = tf.stop_gradient(_maximum(_where_all(masks, logits, masked)))
    nothing = tf.where(top > MASKED / 2, masked, 0.0)[..., None] if reference else masked
    # Masked once more, not read again: neither tensor of masked logits is then ever stored.
    weights = tf.exp(_where_all(masks, logits - top[..., None], nothing))
    total = tf.reduce_sum(weights, axis=-1)
    found = total > 0
    total = tf.where(found, total, 1.0)
    if reference:
        weights /= total[..., None]
    if dropout:
        keep = tf.random.stateless_uniform(tf.shape(weights), seed) >= dropout
        weights = tf.where(keep, weights / (1.0 - dropout), tf.zeros_like(weights))
    weights = tf.cast(weights, value.dtype)
    output = _weighted_sums(weights, value)
    if relative_values is not None:
        output += relative_values(weights)
    if not reference:
        output *= tf.cast(1.0 / total, value.dtype)[..., None]
    log_total = tf.where(found, top + tf.math.log(total), masked)
    return output, log_total


def _where_all(masks, x, otherwise):
    for mask in masks:
        x = tf.where(mask, x, otherwise)
    return x


# Queries of a part of `in_parts`, and how many parts there are at most.
PART_SIZE, MAX_PARTS = 128, 4


def in_parts(attend_rows, queries, causal, offset, seed):
    """Attention of a block, where causal a part of its queries at a time, to no key after the part.

    A block of w queries that attend to no later key makes w² products, of which nearly half are
    masked; in two parts it makes a quarter less.

    Args:
        attend_rows: function of a slice of the block's queries, a slice of its keys and a seed,
            which returns the output of these queries, `[..., queries, value_depth]`.
        queries: number of queries in a block, or None where it is not known.
        causal: whether query i attends to no key behind i + offset.
        offset: place of the block's first query among its keys.
        seed: int `[2]`, or None where there is no dropout.

    Returns:
        The output of all queries.
    """
    parts = min(MAX_PARTS, queries // PART_SIZE) if causal and queries else 1
    if parts < 2:
        return attend_rows(slice(None), slice(None), seed)
    ends = [queries * i // parts for i in range(parts + 1)]
    seeds = [None] * parts if seed is None else tf.unstack(tf.random.split(seed, parts))
    outputs = [
        attend_rows(slice(start, end), slice(0, offset + end), seed)
        for start, end, seed in zip(ends, ends[1:], seeds)
    ]
    return tf.concat(outputs, axis=-2)


@tf.custom_gradient
def _logits(query, key):
    """`query · key` for all pairs of a block, `[..., queries, keys]`."""

    def gradients(upstream):
        # Transposed are the short rows, never the upstream gradient: a third faster on a CPU.
        of_key = tf.matmul(query, upstream, transpose_a=True)
        return tf.matmul(upstream, key), tf.linalg.matrix_transpose(of_key)

    return tf.matmul(query, key, transpose_b=True), gradients


@tf.custom_gradient
def _weighted_sums(weights, value):
    """The sums of the values that weights `[..., queries, keys]` give."""

    def gradients(upstream):
        of_value = tf.matmul(upstream, weights, transpose_a=True)
        of_weights = tf.matmul(upstream, value, transpose_b=True)
        return of_weights, tf.linalg.matrix_transpose(of_value)

    return tf.matmul(weights, value), gradients


def _maximum(x):
    """The maximum over the last axis, in two steps where that axis divides into short rows.

    XLA on a CPU computes what a short reduction reads on the fly, but stores it for a long one.
    """
    width = next((n for n in (32, 16, 8) if x.shape[-1] and x.shape[-1] % n == 0), None)
    if width is not None and x.shape[-1] > width:
        shape = [size(x, axis) for axis in range(x.shape.rank)]
        x = tf.reduce_max(tf.reshape(x, [*shape[:-1], -1, width]), axis=-1)
    return tf.reduce_max(x, axis=-1)
