"""The softmax that every kind of attention ends in: of one set of keys, merged, or of one step."""

import math
from typing import NamedTuple

import tensorflow as tf

from rt_keras.ops.blocks import fold_heads, size, sizes
from rt_keras.ops.devices import runs_on_cpu_kernels

# Replaces minus infinity, because the difference of two masked logits would be NaN.
MASKED = -1e30

# exp(-MAX_EXPONENT) does not underflow in any dtype but float16.
MAX_EXPONENT = 80.0


def accumulation_dtype(dtype):
    """Returns the dtype of softmax and statistics: float64 for float64, else float32."""
    return tf.float64 if dtype == tf.float64 else tf.float32


def attend(query, key, value, allowed, *, bias=None, bound=None, dropout=0.0, seed=None):
    """Attends from each block's queries to the same block's keys.

    ```
    output_i = sum_j p_ij value_j / sum_j p_ij,    p_ij = exp(query_i · key_j + bias_ij)
    ```

    over the keys j that `allowed` lets query i see. A query without keys gets 0 and no gradient.

    Args:
        query: `[..., queries, depth]`, already scaled.
        key: `[..., keys, depth]`.
        value: `[..., keys, value_depth]`.
        allowed: bool, broadcastable to `[..., queries, keys]`; or a tuple of such masks, all of
            which must allow a key. Masks that only depend on positions are best passed separately,
            because TensorFlow would fold their combination into one large constant.
        bias: broadcastable to `[..., queries, keys]`, added to the logits; or None.
        bound: float, an upper bound on the absolute value of every logit, known for normalized
            vectors without a bias; or None. It is subtracted before exp() instead of the largest
            logit, which saves a pass over the logits, unless p could underflow.
        dropout: float, share of the attention weights set to 0.
        seed: int `[2]`, needed if `dropout` is above 0.

    Returns:
        The output `[..., queries, value_depth]` in the dtype of `value`, and the logsumexp of the
        logits `[..., queries]`. The logsumexp is `MASKED` for queries without keys.
    """
    dtype = accumulation_dtype(query.dtype)
    logits = tf.cast(pair_logits(query, key), dtype)  # [..., queries, keys]
    if bias is not None:
        logits += tf.cast(bias, dtype)
    masked = tf.constant(MASKED, dtype)
    masks = allowed if isinstance(allowed, tuple) else (allowed,)
    if runs_on_cpu_kernels():
        return softmax_sums(where_all(masks, logits, masked), value, dropout, seed)
    # p is at least exp(-2 bound), and the gradient has the square of its sum.
    if bound is not None and 4 * bound < MAX_EXPONENT and value.dtype != tf.float16:
        top = tf.constant([bound], dtype)
    else:
        top = tf.stop_gradient(row_maximum(where_all(masks, logits, masked)))  # [..., queries]
    # Masked a second time rather than reused, so that no tensor of masked logits is ever stored.
    weights = tf.exp(where_all(masks, logits - tf.expand_dims(top, -1), masked))
    total = tf.reduce_sum(weights, axis=-1)  # [..., queries]
    has_keys = total > 0
    total = tf.where(has_keys, total, 1.0)
    weights = tf.cast(drop(weights, dropout, seed), value.dtype)
    output = weighted_sums(weights, value) * tf.expand_dims(tf.cast(1.0 / total, value.dtype), -1)
    return output, tf.where(has_keys, top + tf.math.log(total), masked)


def softmax_sums(logits, value, dropout=0.0, seed=None):
    """Computes what `attend` does from masked logits, by TensorFlow's kernels."""
    weights, logsumexp = _softmax(logits)
    has_keys = logsumexp > MASKED / 2
    output = weighted_sums(tf.cast(drop(weights, dropout, seed), value.dtype), value)
    output = tf.where(has_keys[..., None], output, tf.zeros([], output.dtype))
    return output, tf.where(has_keys, logsumexp, tf.constant(MASKED, logits.dtype))


@tf.custom_gradient
def _softmax(logits):
    """Returns the softmax of rows, `[..., queries, keys]`, and their logsumexp."""
    # TensorFlow's kernel takes at most five axes.
    rows = tf.reshape(logits, [math.prod(sizes(logits)[:-1]), size(logits, -1)])
    weights = tf.reshape(tf.nn.softmax(rows), sizes(logits))
    # The largest weight is exp(largest logit - logsumexp).
    logsumexp = tf.reduce_max(logits, axis=-1) - tf.math.log(tf.reduce_max(weights, axis=-1))

    def gradients(weights_gradient, logsumexp_gradient):
        mean = tf.reduce_sum(weights * weights_gradient, axis=-1) - logsumexp_gradient
        return weights * (weights_gradient - mean[..., None])

    return (weights, logsumexp), gradients


def attend_folded(query, key, value, allowed, *, bias=None, dropout=0.0, seed=None):
    """Computes `attend` for `[batch, heads, queries, depth]`, with as many or fewer heads of keys.

    Each key head serves `heads / key_heads` consecutive heads, which attend together, so that its
    keys are read once. Masks and biases are
    `[batch, key_heads, heads / key_heads * queries, keys]`.
    """
    heads, folded = query.shape[1], fold_heads(query, key.shape[1])
    options = {"bias": bias, "dropout": dropout, "seed": seed}
    output, logsumexp = attend(folded, key, value, allowed, **options)
    return fold_heads(output, heads), fold_heads(logsumexp, heads)


def merge(outputs, logsumexps, axis):
    """Merges the attention to several sets of keys into one softmax.

    ```
    output = sum_s exp(logsumexp_s) output_s / sum_s exp(logsumexp_s)
    ```

    Args:
        outputs: `[..., queries, value_depth]`, the output for each set, stacked along `axis`.
        logsumexps: `[..., queries]`, the logsumexp of each set's logits, stacked along `axis`.
        axis: int, the axis of the sets, counted from the front.

    Returns:
        `[..., queries, value_depth]`, without `axis`.
    """
    shares = tf.cast(tf.nn.softmax(logsumexps, axis=axis), outputs.dtype)
    return tf.reduce_sum(shares[..., None] * outputs, axis=axis)


def merge_sets(*sets, return_logsumexp=False):
    """Merges the attention to several sets of keys into one softmax; see `merge`.

    Args:
        *sets: pairs of an output `[batch, heads, queries, value_depth]` and the logsumexp of its
            logits `[batch, heads, queries]`.
        return_logsumexp: bool, whether to also return the logsumexp of all logits. Defaults to
            False.

    Returns:
        `[batch, heads, queries, value_depth]`, and with `return_logsumexp` the logsumexp
        `[batch, heads, queries]`.
    """
    outputs, logsumexps = zip(*sets)
    logsumexps = tf.stack(logsumexps, axis=-1)  # [batch, heads, queries, sets]
    output = _sum_of_shares(tf.nn.softmax(logsumexps), *outputs)
    return (output, tf.reduce_logsumexp(logsumexps, axis=-1)) if return_logsumexp else output


@tf.custom_gradient
def _sum_of_shares(shares, *outputs):
    """Sums outputs with shares `[batch, heads, queries, sets]`. The gradient keeps no products."""
    parts = tf.split(tf.cast(shares, outputs[0].dtype), len(outputs), axis=-1)

    def gradients(upstream):
        products = (tf.cast(upstream * x, shares.dtype) for x in outputs)
        shares_gradient = tf.stack([tf.reduce_sum(x, axis=-1) for x in products], axis=-1)
        return shares_gradient, *[part * upstream for part in parts]

    return tf.add_n([part * x for part, x in zip(parts, outputs)]), gradients


class StepKeys(NamedTuple):
    """The keys that a query at one position may see: arguments of `attend_step`."""

    key: tf.Tensor
    value: tf.Tensor
    allowed: tf.Tensor
    distance: tf.Tensor


def attend_step(
    query,
    key,
    value,
    allowed,
    distance,
    *,
    causal=True,
    relative_embeddings=None,
    return_logsumexp=False,
):
    """Computes the attention of one or more queries at the same position to cached keys.

    ```
    output = sum_j softmax_j(query · (key_j + r_j) / sqrt(depth)) value_j
    ```

    where r_j is the relative embedding of key j's distance. Each key head serves heads / key_heads
    consecutive query heads.

    Args:
        query: `[batch, heads, queries, depth]`.
        key: `[batch, key_heads, keys, depth]`.
        value: `[batch, key_heads, keys, value_depth]`.
        allowed: bool, broadcastable to `[batch, heads, queries, keys]`; with fewer `key_heads` than
            heads, the same for all heads and queries.
        distance: int `[keys]`, `[batch, 1, keys]` or `[batch, heads, keys]`, from the query back to
            each key. Only needed with `relative_embeddings`; else it may be None.
        causal: bool, whether all allowed distances are at least 0. Defaults to True.
        relative_embeddings: `[heads, 2 m + 1, depth]`, for distances from -m to m, to which others
            are clipped. None for no relative positions.
        return_logsumexp: bool, whether to also return the logsumexp of the logits. Defaults to
            False.

    Returns:
        `[batch, heads, queries, value_depth]`, and with `return_logsumexp` the logsumexp
        `[batch, heads, queries]`.
    """
    query, bias = query * query.shape[-1] ** -0.5, None
    if relative_embeddings is not None:
        bias = _step_bias(query, relative_embeddings, distance, causal)
        bias = fold_heads(bias, key.shape[1])
    output, logsumexp = attend_folded(query, key, value, allowed, bias=bias)
    return (output, logsumexp) if return_logsumexp else output


def _step_bias(query, relative_embeddings, distance, causal):
    """Computes the relative logits of `attend_step`, `[batch, heads, queries, keys]`."""
    far = relative_embeddings.shape[1] // 2
    # Only the distances that can occur.
    first = 0 if causal else -far
    row = tf.clip_by_value(distance, first, far) - first
    if row.shape.rank > 1:
        row = tf.broadcast_to(row, [size(query, 0), query.shape[1], size(row, 2)])
    table = tf.cast(relative_embeddings[:, first + far :], query.dtype)  # [heads, distances, depth]
    products = tf.einsum("bhqd,hrd->bhqr", query, table)
    return tf.gather(products, row, axis=3, batch_dims=row.shape.rank - 1)


def no_attention(query, value):
    """Returns the output and the logsumexp of queries `[batch, heads, length, depth]` without keys.

    The output is zeros, `[batch, heads, length, value_depth]`, in the dtype of `value`.
    """
    shape, dtype = sizes(query)[:3], accumulation_dtype(query.dtype)
    output = tf.zeros([*shape, size(value, 3)], value.dtype)
    return output, tf.fill(shape, tf.constant(MASKED, dtype))


def without_padding(output, logsumexp, query_mask):
    """Replaces what padding attends to by what a query without keys does; see `attend`.

    The mask is bool `[batch, length]`, False for padding, or None.
    """
    if query_mask is None:
        return output, logsumexp
    real = tf.cast(query_mask, tf.bool)[:, None]
    output = tf.where(real[..., None], output, tf.zeros([], output.dtype))
    return output, tf.where(real, logsumexp, tf.constant(MASKED, logsumexp.dtype))


def where_all(masks, x, otherwise):
    """Selects `x` where all masks are True, else `otherwise`."""
    for mask in masks:
        x = tf.where(mask, x, otherwise)
    return x


def drop(weights, dropout, seed):
    """Sets a share of the attention weights to 0 and scales up the others to keep the mean."""
    if not dropout:
        return weights
    keep = tf.random.stateless_uniform(tf.shape(weights), seed) >= dropout
    return tf.where(keep, weights / (1.0 - dropout), tf.zeros_like(weights))


# Minimum number of queries in a part of `in_parts`, and maximum number of parts.
PART_SIZE, MAX_PARTS = 128, 4


def in_parts(attend_rows, queries, causal, offset, seed):
    """Computes the attention of a block, in parts if it is causal and large enough.

    A causal block of w queries computes w² products, nearly half of which are masked. In two parts,
    each with only the keys up to its last query, it computes a quarter less.

    Args:
        attend_rows: function of a slice of the block's queries, a slice of its keys and a seed. It
            returns a tensor for these queries, `[batch, heads, blocks, queries, ...]`, or a tuple
            of tensors.
        queries: int, number of queries in a block, or None if unknown.
        causal: bool, whether query i only attends to keys up to i + offset.
        offset: int, index of the block's first query among its keys.
        seed: int `[2]`, or None if there is no dropout.

    Returns:
        The tensor or the tuple of tensors for all queries.
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
    return tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=3), *outputs)


# Number of queries in a block from which the gradients below are faster on a CPU.
LONG_BLOCK = 128


def pair_logits(query, key):
    """Computes `query · key` for all pairs of a block, `[..., queries, keys]`."""
    if _is_long(query, key):
        return _pair_logits(query, key)
    return tf.matmul(query, key, transpose_b=True)


def weighted_sums(weights, value):
    """Computes sums of the values with weights `[..., queries, keys]`."""
    if _is_long(weights, value):
        return _weighted_sums(weights, value)
    return tf.matmul(weights, value)


def _is_long(rows, other):
    """Returns whether there are many rows, and no matrix is broadcast with others."""
    same = tuple(rows.shape[:-2]) == tuple(other.shape[:-2])
    return same and (rows.shape[-2] or LONG_BLOCK) >= LONG_BLOCK


@tf.custom_gradient
def _pair_logits(query, key):
    def gradients(upstream):
        # Transposes the short rows, never the upstream gradient.
        key_gradient = tf.matmul(query, upstream, transpose_a=True)
        return tf.matmul(upstream, key), tf.linalg.matrix_transpose(key_gradient)

    return tf.matmul(query, key, transpose_b=True), gradients


@tf.custom_gradient
def _weighted_sums(weights, value):
    def gradients(upstream):
        value_gradient = tf.matmul(upstream, weights, transpose_a=True)
        weights_gradient = tf.matmul(upstream, value, transpose_b=True)
        return weights_gradient, tf.linalg.matrix_transpose(value_gradient)

    return tf.matmul(weights, value), gradients


def row_maximum(x):
    """Computes the maximum over the last axis, in two steps if it divides into short rows.

    XLA on a CPU computes the operand of a short reduction on the fly, but stores that of a long
    one.
    """
    width = next((n for n in (32, 16, 8) if x.shape[-1] and x.shape[-1] % n == 0), None)
    if width is not None and x.shape[-1] > width:
        shape = sizes(x)
        x = tf.reduce_max(tf.reshape(x, [*shape[:-1], -1, width]), axis=-1)
    return tf.reduce_max(x, axis=-1)
