"""Attention inside clusters that pick their members: what the kinds that do so share."""

import functools

import tensorflow as tf

from rt_keras.ops.attend import accumulation_dtype, attend, in_parts
from rt_keras.ops.blocks import ceil_div, pad_axis, size
from rt_keras.ops.chunks import (
    PER_HEAD_WEIGHTS,
    over_blocks,
    over_heads,
    slices_of_heads,
    smallest_divisor,
)
from rt_keras.ops.relative import pair_bias, window_bias, window_values
from rt_keras.ops.routing import logit_bound, normalize, prepare

# What the paper's authors add to the number of clusters that chose a position.
REFERENCE_COUNT = 0.01


def cluster_attention(
    pick_members,
    per_head,
    shared,
    *,
    num_clusters,
    window_size,
    causal,
    dropout,
    reference_block_size,
):
    """Attention inside clusters: each picks queries and keys, and attends among them.

    With q, k the normalised queries and keys, Q_c and K_c the members that cluster c picked,

    ```
    output_ic = sum_(j in K_c) softmax_j(q_i · (k_j + r_(i - j)) / sqrt(depth) + t_j) value_j
    output_i = mean of output_ic over the clusters c with i in Q_c; 0 if there is none
    ```

    Args:
        pick_members: function of normalised vectors `[batch, heads, length, depth]`, the mask of
            those that are not padding or None, the number of members, and the arguments of these
            heads, a dictionary; returns the positions of each cluster's members, int
            `[batch, heads, clusters, members]`.
        per_head: arguments with heads, as those of `over_heads`: query, key, value,
            relative_embeddings, relative_values, and what `pick_members` needs.
        shared: arguments for all heads: query_mask, key_mask, token_bias, seed.
        num_clusters: how many clusters there are.
        window_size: members of a cluster; all positions where there are fewer.
        causal: whether query i sees key j only if j <= i.
        dropout: share of the attention weights set to 0.
        reference_block_size: None; or, to compute what the code of the paper's authors does, the
            block size of the local heads beside. That code pads sequences with zeros to whole
            blocks, lets padding be members, does not scale the logits, replaces positions by
            ranks in the cluster, both in the causal mask and in relative distances, gives a query
            without keys the mean of the cluster, and divides by the number of clusters plus 0.01.

    Returns:
        `[batch, heads, queries, value_depth]`.
    """
    query = per_head["query"]
    logits = size(query, 0) * query.shape[1] * num_clusters * window_size**2
    dtype = per_head["value"].dtype
    if reference_block_size is not None:
        return over_heads(
            lambda arguments: _attend_as_reference(
                arguments, pick_members, window_size, causal, dropout, reference_block_size
            ),
            per_head,
            shared,
            logits,
            dtype,
        )
    key_mask, query_mask = shared["key_mask"], shared["query_mask"]
    same = per_head["key"] is None and (key_mask is None or key_mask is query_mask)
    in_order = causal and same

    # Before attention, whose gradient may compute all that it does anew.
    def members_of(x, mask):
        return _pick(pick_members, per_head, x, mask, window_size, in_order, logits)

    members = {"of_queries": members_of(query, query_mask)}
    if not same:
        key = query if per_head["key"] is None else per_head["key"]
        members["of_keys"] = members_of(key, key_mask)
    slices = smallest_divisor(num_clusters, slices_of_heads(query.shape[1], logits))
    return over_heads(
        lambda arguments: _attend(arguments, causal, in_order, dropout, slices),
        {**per_head, **members},
        shared,
        logits,
        dtype,
    )


def _pick(pick_members, per_head, x, mask, window_size, in_order, logits):
    """The members of each cluster among the positions of `x`, `[batch, heads, clusters, members]`.

    Args:
        pick_members, per_head, window_size: as of `cluster_attention`.
        x: queries or keys.
        mask: which of them are no padding, or None.
        in_order: whether members are wanted in ascending order.
        logits: how many there are for these members, which decides on the heads at once.
    """

    def pick(arguments):
        x = normalize(arguments["query"])
        found = pick_members(x, arguments.get("mask"), _count(x, window_size), arguments)
        return tf.sort(found, axis=-1) if in_order else found

    weights = {name: per_head[name] for name in PER_HEAD_WEIGHTS if name in per_head}
    weights["query"] = tf.stop_gradient(x)
    return over_heads(pick, weights, {"mask": mask}, logits, tf.int32)


def top_members(scores, mask, count):
    """The `count` positions with the highest scores, in any order.

    Args:
        scores: `[batch, heads, clusters, length]`.
        mask: bool `[batch, length]`, False for what is only taken once all else is, or None.
        count: how many.

    Returns:
        int32 `[batch, heads, clusters, count]`. Of equal scores the first positions are taken.
    """
    if mask is not None:
        scores = tf.where(tf.cast(mask, tf.bool)[:, None, None], scores, scores.dtype.min)
    return tf.math.top_k(scores, count, sorted=False).indices


def _attend(arguments, causal, in_order, dropout, slices):
    query_mask, key_mask = arguments.get("query_mask"), arguments.get("key_mask")
    query, key = prepare(arguments["query"], arguments.get("key"))
    if key is query and key_mask is None:
        key_mask = query_mask
    of_queries = arguments["of_queries"]
    same = "of_keys" not in arguments
    of_keys = of_queries if same else arguments["of_keys"]
    keys, depth = tf.gather(key, of_keys, batch_dims=2), query.shape[-1]
    members = {
        "queries": (keys if same else tf.gather(query, of_queries, batch_dims=2)) * depth**-0.5,
        "keys": keys,
        "values": tf.gather(arguments["value"], of_keys, batch_dims=2),
        "of_queries": of_queries,
        "of_keys": of_keys,
        "key_bias": _token_bias(arguments, of_keys),
        "real": None if key_mask is None else _at(tf.cast(key_mask, tf.bool), of_keys),
    }
    output = over_blocks(
        lambda part: _attend_clusters(part, depth, causal, in_order, dropout),
        members,
        {name: arguments.get(name) for name in ("relative_embeddings", "seed")},
        slices,
        members["values"].dtype,
    )
    output = _put_back(output, of_queries, size(query, 2))
    if query_mask is not None:
        output *= tf.cast(query_mask, output.dtype)[:, None, :, None]
    return output


def _attend_clusters(members, depth, causal, in_order, dropout):
    """Attention inside clusters, to keys up to each query if causal.

    Args:
        members: what is known of the members, `[batch, heads, clusters, members, ...]`; queries
            are scaled.
        depth: of queries and keys.
        causal: whether query i sees key j only if j <= i.
        in_order: whether queries and keys are the same positions, in ascending order.
        dropout: share of the attention weights set to 0.
    """

    def attend_rows(rows, seen, seed):
        queries, of_queries = members["queries"][..., rows, :], members["of_queries"][..., rows]
        of_keys = members["of_keys"][..., seen]
        allowed = tf.ones([1, 1, 1, 1, 1], tf.bool)
        if causal:
            allowed = of_keys[..., None, :] <= of_queries[..., None]
        if "real" in members:
            allowed &= members["real"][..., None, seen]
        bias = members["key_bias"][..., seen] if "key_bias" in members else None
        if "relative_embeddings" in members:
            relative = pair_bias(queries, members["relative_embeddings"], of_queries, of_keys)
            bias = relative if bias is None else bias + relative
        return attend(
            queries,
            members["keys"][..., seen, :],
            members["values"][..., seen, :],
            allowed,
            bias=bias,
            bound=logit_bound(depth, bias),
            dropout=dropout,
            seed=seed,
        )[0]

    return in_parts(attend_rows, members["queries"].shape[3], in_order, 0, members.get("seed"))


def _attend_as_reference(arguments, pick_members, window_size, causal, dropout, block_size):
    length = size(arguments["query"], 2)
    arguments, real = _pad_to_blocks(arguments, block_size)
    # The authors scale queries before they normalise them, not after.
    query = arguments["query"] * arguments["query"].shape[-1] ** -0.5
    query, key = prepare(query, arguments.get("key"))
    of_queries = tf.sort(pick_members(query, None, _count(query, window_size), arguments))
    of_keys = of_queries
    if key is not query:
        of_keys = tf.sort(pick_members(key, None, _count(key, window_size), arguments))
    queries = tf.gather(query, of_queries, batch_dims=2)
    allowed = _at(real, of_keys)[..., None, :]
    if causal and of_keys is of_queries:
        # The order of ranks is then that of positions, which are no constant of the program.
        allowed &= of_keys[..., None, :] <= of_queries[..., None]
    elif causal:
        allowed &= tf.range(size(of_keys, 3)) <= tf.range(size(of_queries, 3))[:, None]
    bias, relative_values = _token_bias(arguments, of_keys), None
    if "relative_embeddings" in arguments:
        table, count = arguments["relative_embeddings"], size(of_keys, 3)
        relative = window_bias(queries, table, count, 0, causal)
        bias = relative if bias is None else bias + relative
    if "relative_values" in arguments:
        relative_values = functools.partial(
            window_values, embeddings=arguments["relative_values"], offset=0, causal=causal
        )
    output, _ = attend(
        queries,
        tf.gather(key, of_keys, batch_dims=2),
        tf.gather(arguments["value"], of_keys, batch_dims=2),
        allowed,
        bias=bias,
        relative_values=relative_values,
        reference=True,
        dropout=dropout,
        seed=arguments.get("seed"),
    )
    return _put_back(output, of_queries, size(query, 2), REFERENCE_COUNT)[:, :, :length]


def _pad_to_blocks(arguments, block_size):
    """Arguments with zeros behind, up to whole blocks, and the mask of the keys that are real."""
    padded = dict(arguments)
    for name, axis in (("query", 2), ("key", 2), ("value", 2), ("token_bias", 1), ("key_mask", 1)):
        if name in arguments:
            length = size(arguments[name], axis)
            missing = ceil_div(length, block_size) * block_size - length
            padded[name] = pad_axis(tf.convert_to_tensor(arguments[name]), axis, 0, missing)
    value = arguments["value"]
    real = tf.ones([size(value, 0), size(value, 2)], tf.bool)
    real = pad_axis(real, 1, 0, size(padded["value"], 2) - size(value, 2), fill=False)
    if "key_mask" in arguments:
        real &= tf.cast(padded["key_mask"], tf.bool)
    return padded, real


def _count(x, window_size):
    length = size(x, 2)
    return min(window_size, length) if isinstance(length, int) else tf.minimum(window_size, length)


def _token_bias(arguments, members):
    """The bias of each member key, `[batch, heads, clusters, 1, keys]`, or None."""
    if "token_bias" not in arguments:
        return None
    return _at(tf.cast(arguments["token_bias"], arguments["query"].dtype), members)[..., None, :]


def _at(x, members):
    """What `x` `[batch, length]` has at each member `[batch, heads, clusters, w]`."""
    heads, clusters = size(members, 1), size(members, 2)
    flat = tf.reshape(members, [size(members, 0), -1])
    return tf.reshape(
        tf.gather(x, flat, batch_dims=1), [size(members, 0), heads, clusters, size(members, 3)]
    )


def _put_back(output, members, length, added_count=0.0):
    """Rows at their positions: the sum over the clusters that chose one, over their number."""
    batch, heads, depth = size(output, 0), size(output, 1), size(output, 4)
    sequences = tf.reshape(tf.range(batch * heads), [batch, heads, 1, 1])
    segments = tf.reshape(sequences * length + members, [-1])
    rows = tf.cast(tf.reshape(output, [-1, depth]), accumulation_dtype(output.dtype))
    if added_count:
        sums = tf.math.unsorted_segment_sum(rows, segments, batch * heads * length)
        ones = tf.ones_like(rows[:, :1])
        counts = tf.math.unsorted_segment_sum(ones, segments, batch * heads * length)
        means = sums / (counts + added_count)
    else:
        means = tf.math.unsorted_segment_mean(rows, segments, batch * heads * length)
    return tf.cast(tf.reshape(means, [batch, heads, length, depth]), output.dtype)
