"""Attention within clusters as in the authors' code, by rank in the cluster."""

import tensorflow as tf

from rt_keras.convert.t2t.attend import attend
from rt_keras.convert.t2t.relative import relative_terms
from rt_keras.ops.attend import accumulation_dtype
from rt_keras.ops.balanced import at_members, num_logits, rows_of_members, top_members
from rt_keras.ops.blocks import ceil_div, larger, pad_axis, size, smaller
from rt_keras.ops.nearest.assign import centroid_scores, prepare
from rt_keras.ops.slices import over_heads

# That code adds this to the number of clusters that chose a position.
ADDED_COUNT = 0.01


def cluster_attention(inputs, pick_members, weights, num_clusters, window_size, block_size, shared):
    """Computes `rt_keras.ops.balanced.cluster_attention` as in the authors' code.

    That code pads sequences with zeros to whole blocks, and padding can be a member. It does not
    scale the logits. Causal masks and relative distances use ranks in the cluster instead of
    positions, so that a causal query with separate keys can see later positions. A query without
    keys gets the mean of the cluster. Sums over clusters are divided by the number of clusters that
    chose a position plus 0.01.

    Args:
        inputs: `AttentionInputs`. The mask of queries is ignored, as in that code; if `causal`, the
            query of rank i sees the key of rank j only if j <= i.
        pick_members, weights, num_clusters, window_size: see that function.
        block_size: int, sequences are padded to a multiple of this size.
        shared: dictionary of `token_bias`, `relative_embeddings` and `relative_values`; see
            `rt_keras.convert.t2t.local.local_attention`.

    Returns:
        `[batch, heads, queries, value_depth]`.

    Source: the code of Roy et al. 2021.

    >>> from rt_keras.ops.balanced import nearest_members
    >>> from rt_keras.layers.attention_inputs import AttentionInputs
    >>> x = tf.random.normal([1, 2, 10, 4])
    >>> weights = {"centroids": tf.random.normal([2, 2, 4])}
    >>> cluster_attention(AttentionInputs(x, x, x), nearest_members, weights, 2, 4, 4, {}).shape
    TensorShape([1, 2, 10, 4])
    """

    def members_of(x, arguments):
        return tf.sort(pick_members(x, None, smaller(window_size, size(x, 2)), arguments))

    def attend_heads(arguments):
        return _attend(arguments, members_of, block_size, inputs.causal, inputs.dropout)

    activations = {"query": inputs.query, "key": inputs.key, "value": inputs.value}
    shared = {**shared, "key_mask": inputs.key_mask, "seed": inputs.seed}
    logits = num_logits(inputs.query, num_clusters, window_size)
    return over_heads(attend_heads, activations, weights, shared, logits, inputs.value.dtype)


def _attend(arguments, members_of, block_size, causal, dropout):
    length = size(arguments["query"], 2)
    arguments, real = _pad_to_blocks(arguments, block_size)
    # That code scales queries before normalization, not after.
    query = arguments["query"] * arguments["query"].shape[-1] ** -0.5
    query, key = prepare(query, arguments.get("key"))
    query_members = members_of(query, arguments)
    key_members = query_members if key is query else members_of(key, arguments)
    allowed = at_members(real, key_members)[..., None, :]
    if causal and key_members is query_members:
        # Ranks then have the order of positions; comparing these avoids a constant mask.
        allowed &= key_members[..., None, :] <= query_members[..., None]
    elif causal:
        allowed &= tf.range(size(key_members, 3)) <= tf.range(size(query_members, 3))[:, None]
    queries = tf.gather(query, query_members, batch_dims=2)
    keys, values = (tf.gather(x, key_members, batch_dims=2) for x in (key, arguments["value"]))
    bias = None
    if "token_bias" in arguments:
        bias = at_members(tf.cast(arguments["token_bias"], query.dtype), key_members)[..., None, :]
    terms = relative_terms(arguments, queries, size(key_members, 3), 0, causal, bias)
    random = {"dropout": dropout, "seed": arguments.get("seed")}
    output = attend(queries, keys, values, (allowed,), **terms, **random)
    return _put_back(output, query_members, size(query, 2))[:, :, :length]


def _pad_to_blocks(arguments, block_size):
    """Pads arguments with zeros to one whole block or more; also returns the mask of real keys."""
    padded = dict(arguments)
    for name, axis in (("query", 2), ("key", 2), ("value", 2), ("token_bias", 1), ("key_mask", 1)):
        if name in arguments:
            length = size(arguments[name], axis)
            missing = larger(ceil_div(length, block_size), 1) * block_size - length
            padded[name] = pad_axis(arguments[name], axis, 0, missing)
    value = arguments["value"]
    real = tf.ones([size(value, 0), size(value, 2)], tf.bool)
    real = pad_axis(real, 1, 0, size(padded["value"], 2) - size(value, 2), fill=False)
    if "key_mask" in arguments:
        real &= tf.cast(padded["key_mask"], tf.bool)
    return padded, real


def _put_back(output, members, length):
    """Scatters rows of members to their positions: sum over clusters / (their number + 0.01)."""
    rows, segments, shape = rows_of_members(output, members, length)
    count = shape[0] * shape[1] * length
    sums = tf.math.unsorted_segment_sum(rows, segments, count)
    counts = tf.math.unsorted_segment_sum(tf.ones_like(rows[:, :1]), segments, count)
    return tf.cast(tf.reshape(sums / (counts + ADDED_COUNT), shape), output.dtype)


def strided_members(x, mask, count, weights):
    """Picks evenly spaced positions in the order of their scores for each of the "centroids".

    Args:
        x: normalized vectors, `[batch, heads, length, depth]`.
        mask: None, since padding can be a member.
        count: int, number of members.
        weights: dictionary with "centroids", `[heads, clusters, depth]`.

    Returns:
        int32 `[batch, heads, clusters, count]`.
    """
    order = tf.argsort(-tf.linalg.matrix_transpose(centroid_scores(x, weights["centroids"])))
    return tf.gather(order, tf.range(count) * (size(x, 2) // count), axis=-1)


def bucket_members(num_buckets, x, mask, count, weights):
    """Picks the first `count` positions in each bucket, then the first ones outside of it.

    The i-th bit of a vector's bucket is 1 if `projection_i · x > 0`.

    Args:
        num_buckets: int, number of buckets that are used, at most 2^bits.
        x: normalized vectors, `[batch, heads, length, depth]`.
        mask: None, since padding can be a member.
        count: int, number of members.
        weights: dictionary with "projections", `[heads, bits, depth]`.

    Returns:
        int32 `[batch, heads, num_buckets, count]`, in any order.
    """
    dtype = accumulation_dtype(x.dtype)
    x, projections = (tf.cast(values, dtype) for values in (x, weights["projections"]))
    sides = tf.cast(tf.einsum("bhnd,hpd->bhnp", x, projections) > 0, tf.int32)
    buckets = tf.reduce_sum(sides * 2 ** tf.range(sides.shape[-1]), axis=-1)
    return top_members(tf.one_hot(buckets, num_buckets, axis=2, dtype=tf.float32), mask, count)
