"""Clustered attention: similar queries share what they attend to."""

import tensorflow as tf

from rt_keras.ops.attend import MASKED, accumulation_dtype, attend, drop, pair_logits, weighted_sums
from rt_keras.ops.blocks import ceil_div, gather_rows, join_blocks, pad_axis, size, split_blocks
from rt_keras.ops.chunks import over_heads
from rt_keras.ops.hamming import hamming_groups, sums_of_groups
from rt_keras.ops.members import at_members
from rt_keras.ops.ranks import sort_by_cluster

# Queries of a group that meet its top keys together.
BLOCK_SIZE = 32
# Keys whose greatest logit tells whether to look for the best ones among them.
PART_SIZE = 8


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

    The queries of a group c, found by `hamming_groups`, attend as their mean does:

    ```
    a_cj = softmax_j(mean of query_i over i in c · key_j / sqrt(depth))
    output_i = sum_j a_cj value_j
    ```

    With `top_k`, improved clustered attention: on the `top_k` keys T_c with the greatest a_cj, each
    query shares out the weight that its group gave to them by its own logits.

    ```
    m_c = sum_(j in T_c) a_cj
    output_i = m_c sum_(j in T_c) softmax_j(query_i · key_j / sqrt(depth)) value_j
             + sum_(j not in T_c) a_cj value_j
    ```

    Each output depends on all queries, by the groups.

    With `causal`, as in the code of the paper's authors, query i sees of T_c the keys up to its own
    position, and no others:

    ```
    output_i = sum_(j in T_c, j <= i) softmax_j(query_i · key_j / sqrt(depth)) value_j
    ```

    Groups and T_c are of the whole sequence all the same, so that outputs depend on later
    positions. This is for comparisons with that code; `causal_clustered_attention` is strict.

    Args:
        query: `[batch, heads, queries, depth]`.
        key: `[batch, heads, keys, depth]`, or None for the queries themselves.
        value: `[batch, heads, keys, value_depth]`.
        projections: `[heads, bits, depth]`, whose signs group the queries; not needed if `groups`
            are given.
        num_clusters: int, number of groups, of which some are empty if there are fewer queries.
        top_k: int, how many keys each query weighs by itself, all if there are fewer; None, the
            default, for none.
        groups: int `[batch, heads, queries]`, the group of each query, from 0; that of padding may
            be any number. None, the default, for those of `hamming_groups`.
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
        ValueError: if there are neither `projections` nor `groups`, a number is below 1, or there
            is no `top_k` but `causal`.

    Source: Vyas et al. 2020, Fast Transformers with Clustered Attention, section 3; its code holds
    m_c constant in the gradient, unlike this.

    >>> x, projections = tf.random.normal([1, 2, 12, 4]), tf.random.normal([2, 8, 4])
    >>> clustered_attention(x, x, x, projections, num_clusters=3, top_k=4).shape
    TensorShape([1, 2, 12, 4])
    """
    if key is None:
        key, key_mask = query, query_mask if key_mask is None else key_mask
    query, key, value = (tf.convert_to_tensor(x) for x in (query, key, value))
    _check(num_clusters, top_k, causal)
    queries = size(query, 2)
    # There is something to group, and there are as many best keys as are looked for.
    query, query_mask, without = _at_least(1, query, query_mask)
    if groups is not None:
        groups = _fill_up(groups, 2, without)
    key, key_mask, missing = _at_least(top_k or 0, key, key_mask)
    value = _fill_up(value, 2, missing)
    if groups is None:
        if projections is None:
            raise ValueError("clustered_attention needs projections or groups")
        if isinstance(queries, int):
            num_clusters = min(num_clusters, max(queries, 1))
        groups = hamming_groups(
            query, projections, num_clusters=num_clusters, iterations=iterations, mask=query_mask
        )
    groups = tf.cast(groups, tf.int32)
    if query_mask is not None:
        real = tf.cast(query_mask, tf.bool)[:, None]
        # Behind all groups, and without a part in any gradient.
        groups = tf.where(real, groups, num_clusters)
        query = tf.where(real[..., None], query, tf.zeros([], query.dtype))
    output = over_heads(
        lambda arguments: _attend(arguments, num_clusters, top_k, causal, dropout),
        {"query": query, "key": key, "value": value, "groups": groups},
        {},
        {"key_mask": key_mask, "seed": seed},
        size(query, 0) * query.shape[1] * num_clusters * size(key, 2),
        value.dtype,
    )
    return output[:, :, :queries]


def _at_least(count, x, mask):
    """A sequence with padding behind it if it is shorter than `count`, its mask, and how much."""
    length = size(x, 2)
    if count == 0 or isinstance(length, int) and length >= count:
        return x, mask, 0
    mask = tf.ones([size(x, 0), length], tf.bool) if mask is None else tf.cast(mask, tf.bool)
    missing = count - length if isinstance(length, int) else tf.maximum(count - length, 0)
    return _fill_up(x, 2, missing), _fill_up(mask, 1, missing), missing


def _fill_up(x, axis, missing):
    """What is missing behind `x` along an axis, as zeros."""
    x = tf.convert_to_tensor(x)
    return x if isinstance(missing, int) and missing == 0 else pad_axis(x, axis, 0, missing)


def _check(num_clusters, top_k, causal):
    """Raises a ValueError if arguments are out of range or do not go together."""
    if num_clusters < 1:
        raise ValueError(f"num_clusters must be at least 1. Received: num_clusters={num_clusters}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be at least 1. Received: top_k={top_k}")
    if causal and top_k is None:
        raise ValueError("clustered_attention needs top_k if causal=True: only these keys are seen")


def _attend(arguments, num_clusters, top_k, causal, dropout):
    """Clustered attention of some heads."""
    query, key, value = (arguments[name] for name in ("query", "key", "value"))
    groups, bias = arguments["groups"], _bias_of_keys(arguments)
    seeds = tf.random.split(arguments["seed"], 2) if dropout else (None, None)
    query *= query.shape[-1] ** -0.5
    means = _means(query, groups, num_clusters)
    logits = _logits(key, means, bias)
    if top_k is None:
        return _of_each(_sums(logits, value, dropout, seeds[0])[0], groups)
    best = _best(logits, top_k)
    of_groups = {
        "key": tf.gather(key, best, batch_dims=2),
        "value": tf.gather(value, best, batch_dims=2),
        "bias": at_members(bias, best),
    }
    if causal:
        of_groups["position"] = best
    else:
        output, logsumexp = _sums(logits, value, dropout, seeds[0])
        shares = _shares(means, of_groups, logsumexp)
        mass = tf.reduce_sum(shares, axis=-1, keepdims=True)
        if dropout:
            shares *= _at_best(drop(tf.ones_like(logits), dropout, seeds[0]), best)
        shares = tf.cast(shares, value.dtype)[..., None, :]
        output -= weighted_sums(shares, of_groups["value"])[..., 0, :]
        of_groups |= {"mass": tf.cast(mass, value.dtype), "rest": output}
    return _attend_in_groups(query, of_groups, groups, num_clusters, dropout, seeds[1])


def _logits(key, means, bias):
    """The logits of each group, `[batch, heads, keys, groups]`.

    Keys are rows: XLA on a CPU multiplies these in two thirds of the time that it takes with groups
    as rows.

    Args:
        key: `[batch, heads, keys, depth]`.
        means: `[batch, heads, groups, depth]`, scaled.
        bias: `[batch, keys]`, `MASKED` for padding.
    """
    bias = bias[:, None, :, None]
    logits = tf.cast(tf.matmul(key, means, transpose_b=True), bias.dtype) + bias
    return tf.where(bias > MASKED, logits, MASKED)


def _sums(logits, value, dropout, seed):
    """The output of each group, and the logsumexp of its logits; 0 without keys."""
    top = tf.stop_gradient(tf.reduce_max(logits, axis=2))
    weights = tf.where(logits > MASKED, tf.exp(logits - top[:, :, None]), 0.0)
    total = tf.reduce_sum(weights, axis=2)
    total = tf.where(total > 0, total, 1.0)
    dropped = tf.cast(drop(weights, dropout, seed), value.dtype)
    output = tf.matmul(dropped, value, transpose_a=True) / tf.cast(total, value.dtype)[..., None]
    return output, top + tf.math.log(total)


def _best(logits, top_k):
    """The keys with the greatest logits of each group, int32 `[batch, heads, groups, top_k]`.

    They are in the `top_k` parts of the keys with the greatest maxima: to look there alone takes a
    third of the time of looking everywhere.
    """
    logits = tf.stop_gradient(logits)
    keys = size(logits, 2)
    parts = ceil_div(keys, PART_SIZE)
    if not isinstance(keys, int) or parts <= top_k:
        return _top(tf.linalg.matrix_transpose(logits), top_k)
    # What fills the last part is less than any key, padding too.
    logits = pad_axis(logits, 2, 0, parts * PART_SIZE - keys, fill=logits.dtype.min)
    maxima = tf.reduce_max(split_blocks(logits, parts, PART_SIZE), axis=3)
    rows = _top(tf.linalg.matrix_transpose(maxima), top_k)[..., None] * PART_SIZE
    shape = [size(rows, axis) for axis in range(3)]
    rows = tf.reshape(rows + tf.range(PART_SIZE), [*shape, top_k * PART_SIZE])
    return tf.gather(rows, _top(_at_best(logits, rows), top_k), batch_dims=3)


def _top(x, count):
    return tf.math.top_k(x, count, sorted=False).indices


def _shares(means, of_groups, logsumexp):
    """The weight that each group gives to its best keys, `[batch, heads, groups, keys]`.

    They are computed again, as a gradient that scatters them among all weights would cost more.
    """
    logits = pair_logits(means[..., None, :], of_groups["key"])[..., 0, :]
    logits = tf.cast(logits, logsumexp.dtype) + of_groups["bias"]
    return tf.where(of_groups["bias"] > MASKED, tf.exp(logits - logsumexp[..., None]), 0.0)


def _at_best(x, best):
    """The entries of `[batch, heads, keys, groups]` at the best keys of each group."""
    batch, heads, keys, groups = (size(x, i) for i in range(4))
    flat = tf.reshape(x, [batch, heads, keys * groups])
    return tf.gather(flat, best * groups + tf.range(groups)[:, None], batch_dims=2)


def _bias_of_keys(arguments):
    """What is added to the logits of each key, `[batch, keys]`: `MASKED` for padding."""
    key = arguments["key"]
    bias = tf.zeros([size(key, 0), size(key, 2)], accumulation_dtype(key.dtype))
    if "key_mask" in arguments:
        bias = tf.where(tf.cast(arguments["key_mask"], tf.bool), bias, MASKED)
    return bias


def _means(query, groups, num_clusters):
    """The mean query of each group, `[batch, heads, groups, depth]`; 0 if it has no members."""
    wide = tf.cast(query, accumulation_dtype(query.dtype))
    sums, counts = sums_of_groups(wide, groups, num_clusters)
    return tf.cast(sums / tf.maximum(counts, 1), query.dtype)


def _of_each(x, groups):
    """What each query's group has, of `[batch, heads, groups, depth]`; 0 for padding."""
    return tf.gather(pad_axis(x, 2, 0, 1), groups, batch_dims=2)


def _attend_in_groups(query, of_groups, groups, num_clusters, dropout, seed):
    """What each query has of its group, and of its own attention to its group's keys.

    Args:
        query: `[batch, heads, queries, depth]`, scaled.
        of_groups: dictionary of "key" and "value", `[batch, heads, groups, keys, depth]`; "bias",
            `[batch, heads, groups, keys]`; and either "position" of the same shape, before which no
            query sees them, or "mass", `[batch, heads, groups, 1]`, the weight of these keys, and
            "rest", `[batch, heads, groups, value_depth]`, what is added.
        groups: int32 `[batch, heads, queries]`; `num_clusters` for padding.
        num_clusters: int, number of groups.
        dropout, seed: see `clustered_attention`.

    Returns:
        `[batch, heads, queries, value_depth]`, 0 for padding.
    """
    group, is_row, of_slots, slots = _blocks_of_groups(groups, num_clusters)
    num_blocks = size(group, 2)
    of_blocks = {name: tf.gather(x, group, batch_dims=2) for name, x in of_groups.items()}
    bias = of_blocks["bias"][..., None, :]
    # Slots without a query get and give no gradient.
    allowed = (is_row[..., None], bias > MASKED)
    if "position" in of_blocks:
        of_rows = tf.reshape(of_slots, tf.shape(is_row))
        allowed += (of_blocks["position"][..., None, :] <= of_rows[..., None],)
    output, _ = attend(
        split_blocks(gather_rows(query, of_slots, slots), num_blocks, BLOCK_SIZE),
        of_blocks["key"],
        of_blocks["value"],
        allowed,
        bias=bias,
        dropout=dropout,
        seed=seed,
    )
    if "mass" in of_blocks:
        rest = tf.where(is_row[..., None], of_blocks["rest"][..., None, :], 0)
        output = of_blocks["mass"][..., None, :] * output + rest
    output = gather_rows(join_blocks(output, num_blocks * BLOCK_SIZE), slots, of_slots)
    return tf.where((groups < num_clusters)[..., None], output, tf.zeros([], output.dtype))


def _blocks_of_groups(groups, num_clusters):
    """Blocks of slots for queries, such that a block has queries of one group alone.

    Args:
        groups: int32 `[batch, heads, queries]`; `num_clusters` for padding.
        num_clusters: int, number of groups.

    Returns:
        The group of each block, `[batch, heads, blocks]`; which slots have a query, bool
        `[batch, heads, blocks, BLOCK_SIZE]`; the query of each slot, or any if it has none,
        `[batch, heads, slots]`; and the slot of each query, or any if it is padding,
        `[batch, heads, queries]`.
    """
    batch, heads, length = (size(groups, axis) for axis in range(3))
    num_blocks = (length + num_clusters * (BLOCK_SIZE - 1)) // BLOCK_SIZE
    order, place, starts = sort_by_cluster(groups[:, :, None], num_clusters)
    blocks = ceil_div(starts[..., 1:-1] - starts[..., :-2], BLOCK_SIZE)
    first, number = tf.cumsum(blocks, axis=2, exclusive=True), tf.range(num_blocks)
    # Of groups that begin at the same block, the last one has members.
    group = tf.reduce_sum(tf.cast(first[:, :, None] <= number[:, None], tf.int32), axis=-1) - 1
    start = tf.gather(starts, group, batch_dims=2)
    start += (number - tf.gather(first, group, batch_dims=2)) * BLOCK_SIZE
    rows = start[..., None] + tf.range(BLOCK_SIZE)
    is_row = rows < tf.gather(starts, group + 1, batch_dims=2)[..., None]
    count = num_blocks * BLOCK_SIZE
    rows = tf.reshape(tf.minimum(rows, length - 1), [batch, heads, count])
    shift = pad_axis(first * BLOCK_SIZE - starts[..., :-2], 2, 0, 1)
    slots = tf.clip_by_value(place + tf.gather(shift, groups, batch_dims=2), 0, count - 1)
    return group, is_row, tf.gather(order, rows, batch_dims=2), slots
