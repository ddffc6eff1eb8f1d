"""Clustered attention: groups of similar queries share their attention weights."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from rt_keras.ops.attend import MASKED, accumulation_dtype, attend, drop, pair_logits, weighted_sums
from rt_keras.ops.balanced import at_members
from rt_keras.ops.blocks import (
    ceil_div,
    gather_rows,
    join_blocks,
    larger,
    pad_axis,
    size,
    split_blocks,
)
from rt_keras.ops.hamming import hamming_groups, sums_of_groups
from rt_keras.ops.naive import naive_logits, naive_mask, naive_shared, naive_softmax
from rt_keras.ops.nearest.assign import sort_by_cluster
from rt_keras.ops.slices import over_heads

# Number of queries of a group that attend to its top keys together.
BLOCK_SIZE = 32
# Number of keys in a part; only the parts with the largest logits are searched for the top keys.
PART_SIZE = 8


def naive_clustered_attention(
    query, key, value, *, groups, num_clusters, top_k=None, causal=False, **masks
):
    """The equation of `clustered_attention`, given the groups: their means attend."""
    key, masks = naive_shared(query, key, **masks)
    visible = naive_mask(query.shape[2], key.shape[2], causal=causal, **masks)
    # [batch, heads, queries, clusters]
    members = groups[..., None] == np.arange(num_clusters)
    if masks["query_mask"] is not None:
        members &= np.asarray(masks["query_mask"], bool)[:, None, :, None]
    counts = np.maximum(members.sum(axis=2), 1)[..., None]
    means = np.einsum("bhic,bhid->bhcd", members, query) / counts
    real = naive_mask(num_clusters, key.shape[2], key_mask=masks["key_mask"])
    weights = naive_softmax(naive_logits(means, key), real)  # [batch, heads, clusters, keys]
    best = np.argsort(np.argsort(-weights, axis=-1, kind="stable")) < (top_k or 0)
    weights, best = (np.einsum("bhic,bhcj->bhij", members, x) for x in (weights, best & real))
    redistributed = naive_softmax(naive_logits(query, key), (best > 0) & visible)
    if causal:
        return redistributed @ value
    mass = np.sum(weights * best, axis=-1, keepdims=True)
    return (mass * redistributed + weights * (1 - best)) @ value


def clustered_attention(
    query,
    key,
    value,
    projections=None,
    *,
    num_clusters,
    top_k=None,
    groups=None,
    iterations=10,
    causal=False,
    query_mask=None,
    key_mask=None,
    dropout=0.0,
    seed=None,
):
    """Full attention of groups of similar queries, in time linear in the length.

    The queries of a group c, found by `hamming_groups`, attend like their mean:

    ```
    a_cj = softmax_j(mean of query_i over i in c · key_j / sqrt(depth))
    output_i = sum_j a_cj value_j
    ```

    With `top_k`, this is improved clustered attention: T_c are the `top_k` keys with the largest
    a_cj, and each query redistributes the weight that its group gives to them by its own logits.

    ```
    m_c = sum_(j in T_c) a_cj
    output_i = m_c sum_(j in T_c) softmax_j(query_i · key_j / sqrt(depth)) value_j
             + sum_(j not in T_c) a_cj value_j
    ```

    Each output depends on all queries, through the groups.

    With `causal`, query i only sees the keys of T_c up to its own position, as in the code of the
    paper's authors:

    ```
    output_i = sum_(j in T_c, j <= i) softmax_j(query_i · key_j / sqrt(depth)) value_j
    ```

    Groups and T_c still come from the whole sequence, so outputs depend on later positions. This
    is for comparisons with that code; `causal_clustered_attention` is strictly causal.

    Args:
        query: `[batch, heads, queries, depth]`.
        key: `[batch, heads, keys, depth]`, or None for the queries themselves.
        value: `[batch, heads, keys, value_depth]`.
        projections: `[heads, bits, depth]`, the random directions of `hamming_groups`; not needed
            if `groups` is given.
        num_clusters: int, number of groups, some of which are empty if there are fewer queries.
        top_k: int, number of keys that each query weights by its own logits, all if there are
            fewer. Defaults to None, for none.
        groups: int `[batch, heads, queries]`, the group of each query, from 0 to num_clusters - 1;
            any number for padding. Defaults to None, for the groups of `hamming_groups`.
        iterations: int, iterations of `hamming_groups`. Defaults to 10.
        causal: bool, whether query i sees key j only if j <= i; needs `top_k`. Defaults to False.
        query_mask: bool `[batch, queries]`, False for padding, which is in no group and whose
            output is 0; or None.
        key_mask: bool `[batch, keys]`, False for padding, which no query sees; or None.
        dropout: float, share of the attention weights set to 0. Defaults to 0.
        seed: int `[2]`, needed if `dropout` is above 0.

    Returns:
        `[batch, heads, queries, value_depth]`. A query that may see no key gets 0.

    Raises:
        ValueError: if neither `projections` nor `groups` is given, if `num_clusters` or `top_k` is
            below 1, or if `causal` is True without `top_k`.

    Source: Vyas et al. 2020, Fast Transformers with Clustered Attention, section 3. Unlike here,
    its code treats m_c as constant in the gradient.

    >>> x, projections = tf.random.normal([1, 2, 12, 4]), tf.random.normal([2, 8, 4])
    >>> clustered_attention(x, x, x, projections, num_clusters=3, top_k=4).shape
    TensorShape([1, 2, 12, 4])
    """
    if key is None:
        key, key_mask = query, query_mask if key_mask is None else key_mask
    query, key, value = (tf.convert_to_tensor(x) for x in (query, key, value))
    _check(num_clusters, top_k, causal)
    queries = size(query, 2)
    # Grouping needs a query, and the search for the top keys needs `top_k` keys.
    query, query_mask, without = _at_least(1, query, query_mask)
    if groups is not None:
        groups = _fill_up(groups, 2, without)
    key, key_mask, missing = _at_least(top_k or 0, key, key_mask)
    value = _fill_up(value, 2, missing)
    if groups is None:
        if projections is None:
            raise ValueError("clustered_attention needs projections or groups. Received: neither")
        if isinstance(queries, int):
            num_clusters = min(num_clusters, max(queries, 1))
        groups = hamming_groups(
            query, projections, num_clusters=num_clusters, iterations=iterations, mask=query_mask
        )
    groups = tf.cast(groups, tf.int32)
    if query_mask is not None:
        real = tf.cast(query_mask, tf.bool)[:, None]
        # Padding comes after all groups and has no part in any gradient.
        groups = tf.where(real, groups, num_clusters)
        query = tf.where(real[..., None], query, tf.zeros([], query.dtype))
    output = over_heads(
        lambda inputs: _attend(
            **inputs, num_clusters=num_clusters, top_k=top_k, causal=causal, dropout=dropout
        ),
        {"query": query, "key": key, "value": value, "groups": groups},
        {},
        {"key_mask": key_mask, "seed": seed},
        size(query, 0) * query.shape[1] * num_clusters * size(key, 2),
        value.dtype,
    )
    return output[:, :, :queries]


def _at_least(count, x, mask):
    """Pads a sequence to at least `count` positions; returns it, its mask and the added length."""
    length = size(x, 2)
    if count == 0 or isinstance(length, int) and length >= count:
        return x, mask, 0
    mask = tf.ones([size(x, 0), length], tf.bool) if mask is None else tf.cast(mask, tf.bool)
    missing = larger(count - length, 0)
    return _fill_up(x, 2, missing), _fill_up(mask, 1, missing), missing


def _fill_up(x, axis, missing):
    """Appends `missing` zeros to `x` along an axis."""
    x = tf.convert_to_tensor(x)
    return x if isinstance(missing, int) and missing == 0 else pad_axis(x, axis, 0, missing)


def _check(num_clusters, top_k, causal):
    """Raises a ValueError if arguments are out of range or cannot be combined."""
    if num_clusters < 1:
        raise ValueError(f"num_clusters must be at least 1. Received: num_clusters={num_clusters}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be at least 1. Received: top_k={top_k}")
    if causal and top_k is None:
        raise ValueError("clustered_attention needs top_k if causal=True. Received: top_k=None")


class GroupKeys(NamedTuple):
    """The best keys of each group; and for bidirectional attention, what else it attends to."""

    key: tf.Tensor  # [batch, heads, groups, keys, depth]
    value: tf.Tensor  # [batch, heads, groups, keys, value_depth]
    bias: tf.Tensor  # [batch, heads, groups, keys], `MASKED` for padding, else 0
    position: tf.Tensor | None = None  # int [batch, heads, groups, keys], for the causal mask
    mass: tf.Tensor | None = None  # [batch, heads, groups, 1], the weight of these keys
    rest: tf.Tensor | None = None  # [batch, heads, groups, value_depth], the output of other keys


def _attend(
    query, key, value, groups, key_mask=None, seed=None, *, num_clusters, top_k, causal, dropout
):
    """Computes clustered attention of some heads."""
    bias = tf.zeros([size(key, 0), size(key, 2)], accumulation_dtype(key.dtype))
    if key_mask is not None:
        bias = tf.where(tf.cast(key_mask, tf.bool), bias, MASKED)
    seeds = tf.random.split(seed, 2) if dropout else (None, None)
    query *= query.shape[-1] ** -0.5
    sums, counts = sums_of_groups(
        tf.cast(query, accumulation_dtype(query.dtype)), groups, num_clusters
    )
    # [batch, heads, groups, depth]; 0 if a group is empty
    means = tf.cast(sums / tf.maximum(counts, 1), query.dtype)
    logits = _logits(key, means, bias)  # [batch, heads, keys, groups]
    if top_k is None:
        output, _ = _sums(logits, value, dropout, seeds[0])
        # Padding, which is after all groups, gets 0.
        return tf.gather(pad_axis(output, 2, 0, 1), groups, batch_dims=2)
    best = _best(logits, top_k)  # [batch, heads, groups, top_k]
    keys = GroupKeys(
        tf.gather(key, best, batch_dims=2),
        tf.gather(value, best, batch_dims=2),
        at_members(bias, best),
    )
    if causal:
        keys = keys._replace(position=best)
    else:
        output, logsumexp = _sums(logits, value, dropout, seeds[0])
        shares = _shares(means, keys, logsumexp)
        mass = tf.reduce_sum(shares, axis=-1, keepdims=True)
        if dropout:
            shares *= _at_best(drop(tf.ones_like(logits), dropout, seeds[0]), best)
        shares = tf.cast(shares, value.dtype)[..., None, :]
        output -= weighted_sums(shares, keys.value)[..., 0, :]
        keys = keys._replace(mass=tf.cast(mass, value.dtype), rest=output)
    return _attend_in_groups(query, keys, groups, num_clusters, dropout, seeds[1])


def _logits(key, means, bias):
    """Computes the logits of each group, `[batch, heads, keys, groups]`.

    Keys are the rows, because XLA on a CPU then needs only two thirds of the time that the product
    takes with groups as rows.

    Args:
        key: `[batch, heads, keys, depth]`.
        means: `[batch, heads, groups, depth]`, scaled.
        bias: `[batch, keys]`, `MASKED` for padding.
    """
    bias = bias[:, None, :, None]
    logits = tf.cast(tf.matmul(key, means, transpose_b=True), bias.dtype) + bias
    return tf.where(bias > MASKED, logits, MASKED)


def _sums(logits, value, dropout, seed):
    """Computes the output of each group, 0 without keys, and the logsumexp of its logits."""
    top = tf.stop_gradient(tf.reduce_max(logits, axis=2))
    weights = tf.where(logits > MASKED, tf.exp(logits - top[:, :, None]), 0.0)
    total = tf.reduce_sum(weights, axis=2)
    total = tf.where(total > 0, total, 1.0)
    dropped = tf.cast(drop(weights, dropout, seed), value.dtype)
    output = tf.matmul(dropped, value, transpose_a=True) / tf.cast(total, value.dtype)[..., None]
    return output, top + tf.math.log(total)


def _best(logits, top_k):
    """Finds the keys with the largest logits of each group, int32 `[batch, heads, groups, top_k]`.

    They are in the `top_k` parts of the keys with the largest maxima. Searching only these takes a
    third of the time.
    """
    logits = tf.stop_gradient(logits)
    keys = size(logits, 2)
    parts = ceil_div(keys, PART_SIZE)
    if not isinstance(keys, int) or parts <= top_k:
        return _top(tf.linalg.matrix_transpose(logits), top_k)
    # The last part is padded with a value below all logits, even those of padding.
    logits = pad_axis(logits, 2, 0, parts * PART_SIZE - keys, fill=logits.dtype.min)
    maxima = tf.reduce_max(split_blocks(logits, parts, PART_SIZE), axis=3)
    rows = _top(tf.linalg.matrix_transpose(maxima), top_k)[..., None] * PART_SIZE
    shape = [size(rows, axis) for axis in range(3)]
    rows = tf.reshape(rows + tf.range(PART_SIZE), [*shape, top_k * PART_SIZE])
    return tf.gather(rows, _top(_at_best(logits, rows), top_k), batch_dims=3)


def _top(x, count):
    return tf.math.top_k(x, count, sorted=False).indices


def _shares(means, keys, logsumexp):
    """Computes the weights that each group gives to its best keys, `[batch, heads, groups, keys]`.

    They are recomputed, because gathering them would need a gradient that scatters, which costs
    more.
    """
    logits = pair_logits(means[..., None, :], keys.key)[..., 0, :]
    logits = tf.cast(logits, logsumexp.dtype) + keys.bias
    return tf.where(keys.bias > MASKED, tf.exp(logits - logsumexp[..., None]), 0.0)


def _at_best(x, best):
    """Gathers the entries of `[batch, heads, keys, groups]` at the best keys of each group."""
    batch, heads, keys, groups = (size(x, i) for i in range(4))
    flat = tf.reshape(x, [batch, heads, keys * groups])
    return tf.gather(flat, best * groups + tf.range(groups)[:, None], batch_dims=2)


def _attend_in_groups(query, keys, groups, num_clusters, dropout, seed):
    """Computes the attention of each query to its group's keys, and adds its group's other output.

    Args:
        query: `[batch, heads, queries, depth]`, scaled.
        keys: the `GroupKeys`.
        groups: int32 `[batch, heads, queries]`; `num_clusters` for padding.
        num_clusters: int, number of groups.
        dropout, seed: see `clustered_attention`.

    Returns:
        `[batch, heads, queries, value_depth]`, 0 for padding.
    """
    group, is_row, entry, slots = _blocks_of_groups(groups, num_clusters)
    num_blocks = size(group, 2)
    # [batch, heads, blocks, keys, ...]
    keys = GroupKeys(*(None if x is None else tf.gather(x, group, batch_dims=2) for x in keys))
    bias = keys.bias[..., None, :]
    # Slots without a query get and give no gradient.
    allowed = (is_row[..., None], bias > MASKED)
    if keys.position is not None:
        positions = tf.reshape(entry, tf.shape(is_row))
        allowed += (keys.position[..., None, :] <= positions[..., None],)
    output, _ = attend(
        split_blocks(gather_rows(query, entry, slots), num_blocks, BLOCK_SIZE),
        keys.key,
        keys.value,
        allowed,
        bias=bias,
        dropout=dropout,
        seed=seed,
    )
    if keys.mass is not None:
        rest = tf.where(is_row[..., None], keys.rest[..., None, :], 0)
        output = keys.mass[..., None, :] * output + rest
    output = gather_rows(join_blocks(output, num_blocks * BLOCK_SIZE), slots, entry)
    return tf.where((groups < num_clusters)[..., None], output, tf.zeros([], output.dtype))


def _blocks_of_groups(groups, num_clusters):
    """Assigns queries to blocks of slots, such that all queries of a block are of one group.

    Args:
        groups: int32 `[batch, heads, queries]`; `num_clusters` for padding.
        num_clusters: int, number of groups.

    Returns:
        The group of each block, `[batch, heads, blocks]`; a mask of the slots that have a query,
        bool `[batch, heads, blocks, BLOCK_SIZE]`; the query of each slot, arbitrary if it has none,
        `[batch, heads, slots]`; and the slot of each query, arbitrary for padding,
        `[batch, heads, queries]`.
    """
    batch, heads, length = (size(groups, axis) for axis in range(3))
    num_blocks = (length + num_clusters * (BLOCK_SIZE - 1)) // BLOCK_SIZE
    order, rank, starts = sort_by_cluster(groups[:, :, None], num_clusters)
    blocks = ceil_div(starts[..., 1:-1] - starts[..., :-2], BLOCK_SIZE)
    first, number = tf.cumsum(blocks, axis=2, exclusive=True), tf.range(num_blocks)
    # Of several groups that start at the same block, only the last one has members.
    group = tf.reduce_sum(tf.cast(first[:, :, None] <= number[:, None], tf.int32), axis=-1) - 1
    start = tf.gather(starts, group, batch_dims=2)
    start += (number - tf.gather(first, group, batch_dims=2)) * BLOCK_SIZE
    rows = start[..., None] + tf.range(BLOCK_SIZE)
    is_row = rows < tf.gather(starts, group + 1, batch_dims=2)[..., None]
    count = num_blocks * BLOCK_SIZE
    rows = tf.reshape(tf.minimum(rows, length - 1), [batch, heads, count])
    shift = pad_axis(first * BLOCK_SIZE - starts[..., :-2], 2, 0, 1)
    slots = tf.clip_by_value(rank + tf.gather(shift, groups, batch_dims=2), 0, count - 1)
    return group, is_row, tf.gather(order, rows, batch_dims=2), slots
