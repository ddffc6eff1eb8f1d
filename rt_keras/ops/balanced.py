"""Routing attention with balanced clusters: each centroid picks its nearest positions.

The naive version first, then the op, and attention inside clusters that pick their members, which
`random.py` shares.
"""

import numpy as np
import tensorflow as tf

from rt_keras.ops.attend import accumulation_dtype, attend, in_parts
from rt_keras.ops.blocks import ceil_div, move_axis, pad_axis, size, sizes, smaller
from rt_keras.ops.naive import naive_attention, naive_mask, naive_normalize, naive_shared
from rt_keras.ops.nearest.assign import logit_bound, normalize, prepare
from rt_keras.ops.relative import pair_bias
from rt_keras.ops.slices import (
    HeadInputs,
    over_blocks,
    over_heads,
    slices_of_blocks,
    smallest_divisor,
)

# Maximum number of scores, one for each centroid and position, that are computed at once.
MAX_SCORES = 2**24
# XLA sorts longer rows part by part if a thousand or more indices are requested. On a CPU this
# takes 40 times as long as finding the best of each part, and the best of those.
LONGEST_ROW = 2**19 - 1


def naive_balanced_attention(query, key, value, centroids, **options):
    """The equation of `balanced_attention`: members score highest for their centroid."""

    def score(x):
        return np.einsum("hcd,bhnd->bhcn", centroids, naive_normalize(x))

    return naive_cluster_attention(query, key, value, score, **options)


def naive_cluster_attention(
    query, key, value, score, *, window_size, causal=False, relative_embeddings=None, **masks
):
    """Attention inside clusters, whose members have the highest scores.

    `score` is a function of queries or keys, which returns `[batch, heads, clusters, length]`.
    """
    key, masks = naive_shared(query, key, **masks)
    query_members = naive_members(score(query), masks["query_mask"], window_size)
    key_members = naive_members(score(key), masks["key_mask"], window_size)
    visible = naive_mask(query.shape[2], key.shape[2], causal=causal, **masks)
    query, key = naive_normalize(query), naive_normalize(key)
    total = 0
    for c in range(query_members.shape[2]):
        inside = query_members[:, :, c, :, None] & key_members[:, :, c, None]
        total += naive_attention(query, key, value, visible & inside, relative_embeddings)
    return total / np.maximum(query_members.sum(axis=2), 1)[..., None]


def naive_members(scores, mask, count):
    """The positions with the highest scores, padding last, bool `[batch, heads, clusters, n]`."""
    if mask is not None:
        scores = np.where(np.asarray(mask, bool)[:, None, None], scores, -np.inf)
    best = np.argsort(-scores, axis=-1, kind="stable")[..., :count]
    members = np.zeros(scores.shape, bool)
    np.put_along_axis(members, best, True, axis=-1)
    return members


def balanced_attention(
    query,
    key,
    value,
    centroids,
    *,
    window_size,
    causal=False,
    query_mask=None,
    key_mask=None,
    relative_embeddings=None,
    dropout=0.0,
    seed=None,
):
    """Routing attention where each centroid attends among the positions that score highest.

    With q, k the normalized queries and keys, each centroid c has the members

    ```
    Q_c = the window_size positions i with the highest centroid_c · q_i
    K_c = the window_size positions j with the highest centroid_c · k_j
    output_ic = sum_(j in K_c) softmax_j(q_i · (k_j + r_(i - j)) / sqrt(depth)) value_j
    output_i = mean of output_ic over the centroids c with i in Q_c; 0 if there is none
    ```

    If causal, only the keys j <= i in K_c count. Attention costs O(clusters · window_size²), and
    the selection of members O(n · clusters). Membership depends on the whole sequence: **changing
    a later token can change an earlier output**, causal or not.

    Args:
        query: `[batch, heads, queries, depth]`, not normalized.
        key: `[batch, heads, keys, depth]`, or None for the queries themselves.
        value: `[batch, heads, keys, value_depth]`.
        centroids: `[heads, clusters, depth]`.
        window_size: int, members of a cluster; all positions if there are fewer.
        causal: bool, whether query i sees key j only if j <= i. Defaults to False.
        query_mask: bool `[batch, queries]`, False for padding, whose output is 0 and which is a
            member only if there are too few other positions; or None.
        key_mask: bool `[batch, keys]`, False for padding, which no query sees and which is a member
            only if there are too few other positions; or None.
        relative_embeddings: `[heads, 2 m + 1, depth]`, r above; distances are clipped to ±m. None
            for no relative positions.
        dropout: float, share of the attention weights set to 0. Defaults to 0.
        seed: int `[2]`, needed if `dropout` is above 0.

    Returns:
        `[batch, heads, queries, value_depth]`.

    Source: Roy et al. 2021, section 4.1 and algorithm 1.

    >>> x = tf.random.normal([1, 2, 12, 4])
    >>> centroids = tf.random.normal([2, 3, 4])
    >>> balanced_attention(x, None, x, centroids, window_size=4, causal=True).shape
    TensorShape([1, 2, 12, 4])
    """
    return cluster_attention(
        nearest_members,
        {"centroids": centroids},
        query,
        key,
        value,
        size(centroids, 1),
        window_size,
        causal=causal,
        query_mask=query_mask,
        key_mask=key_mask,
        relative_embeddings=relative_embeddings,
        dropout=dropout,
        seed=seed,
    )


def nearest_members(x, mask, count, weights):
    """Picks the `count` positions that score highest for each of the "centroids" in `weights`.

    Args:
        x: normalized vectors, `[batch, heads, length, depth]`.
        mask: bool `[batch, length]`, False for positions that are picked last, or None.
        count: int, number of members.
        weights: dictionary with "centroids", `[heads, clusters, depth]`.

    Returns:
        int32 `[batch, heads, clusters, count]`, in any order.
    """

    def nearest_to(centroids):
        """Picks the positions nearest to some centroids, `[batch, heads, clusters, count]`."""
        dtype = accumulation_dtype(x.dtype)
        centroids = tf.cast(centroids, dtype)[None]
        # Not the transpose of `centroid_scores`, which takes twice as long if clusters are many.
        scores = tf.matmul(centroids, tf.cast(x, dtype), transpose_b=True)
        return top_members(tf.stop_gradient(scores), mask, count)

    centroids = weights["centroids"]
    heads, clusters, depth = centroids.shape
    scores, slices = size(x, 0) * heads * clusters * size(x, 2), 1
    if isinstance(scores, int) and scores > MAX_SCORES:
        slices = smallest_divisor(clusters, ceil_div(scores, MAX_SCORES))
    if slices == 1:
        return nearest_to(centroids)
    # [slices, heads, clusters / slices, depth]
    centroids = move_axis(tf.reshape(centroids, [heads, slices, clusters // slices, depth]), 1, 0)
    members = tf.map_fn(nearest_to, centroids, fn_output_signature=tf.int32)
    return tf.reshape(move_axis(members, 0, 2), [size(x, 0), heads, clusters, -1])


def cluster_attention(
    pick_members,
    weights,
    query,
    key,
    value,
    num_clusters,
    window_size,
    *,
    causal,
    query_mask,
    key_mask,
    relative_embeddings,
    dropout,
    seed,
):
    """Attention inside clusters, each of which picks its queries and its keys.

    With q, k the normalized queries and keys, and Q_c and K_c the members that cluster c picked,

    ```
    output_ic = sum_(j in K_c) softmax_j(q_i · (k_j + r_(i - j)) / sqrt(depth)) value_j
    output_i = mean of output_ic over the clusters c with i in Q_c; 0 if there is none
    ```

    Args:
        pick_members: function of normalized vectors `[batch, heads, length, depth]`, a mask that is
            False for padding or None, the number of members, and a dictionary with the `weights` of
            these heads. It returns the positions of each cluster's members, int
            `[batch, heads, clusters, members]`.
        weights: dictionary of the tensors that `pick_members` needs, `[heads, ...]`.
        num_clusters: int, number of clusters.
        query, key, value, window_size, causal, query_mask, key_mask, relative_embeddings, dropout,
            seed: see `balanced_attention`.

    Returns:
        `[batch, heads, queries, value_depth]`.
    """
    logits = num_logits(query, num_clusters, window_size)
    shared = key is None and (key_mask is None or key_mask is query_mask)
    in_order = causal and shared

    # Members are picked outside of the attention, whose gradient may recompute it.
    def members_of(x, mask):
        """Returns the positions of members, int `[batch, heads, clusters, members]`."""

        def pick(inputs):
            x = normalize(inputs["x"])
            count = smaller(window_size, size(x, 2))
            members = pick_members(x, inputs.get("mask"), count, inputs)
            return tf.sort(members, axis=-1) if in_order else members

        x, mask = {"x": tf.stop_gradient(x)}, {"mask": mask}
        return over_heads(pick, x, weights, mask, logits, tf.int32)

    slices = smallest_divisor(num_clusters, slices_of_blocks(query.shape[1], logits))
    return over_heads(
        lambda inputs: _attend(HeadInputs(**inputs), causal, in_order, dropout, slices),
        {
            "query": query,
            "key": key,
            "value": value,
            "query_members": members_of(query, query_mask),
            "key_members": None if shared else members_of(query if key is None else key, key_mask),
        },
        {"relative_embeddings": relative_embeddings},
        {"query_mask": query_mask, "key_mask": key_mask, "seed": seed},
        logits,
        value.dtype,
    )


def num_logits(query, num_clusters, window_size):
    """Returns the number of attention logits of all clusters of all heads."""
    return size(query, 0) * query.shape[1] * num_clusters * window_size**2


def top_members(scores, mask, count):
    """Picks the `count` positions with the highest scores, in any order.

    Args:
        scores: `[batch, heads, clusters, length]`.
        mask: bool `[batch, length]`, False for positions that are picked last, or None.
        count: int, number of members.

    Returns:
        int32 `[batch, heads, clusters, count]`. Of equal scores, the first positions are picked.
    """
    if mask is not None:
        scores = tf.where(tf.cast(mask, tf.bool)[:, None, None], scores, scores.dtype.min)
    length = size(scores, 3)
    if isinstance(length, int) and length > LONGEST_ROW:
        return _top_of_parts(scores, ceil_div(length, LONGEST_ROW), count)
    return tf.math.top_k(scores, count, sorted=False).indices


def _top_of_parts(scores, parts, count):
    """Finds the indices of the highest scores of each row, in each of its parts first."""
    *shape, length = sizes(scores)
    part = ceil_div(length, parts)
    scores = pad_axis(scores, 3, 0, parts * part - length, scores.dtype.min)
    # [batch, heads, clusters, parts, count]
    best, places = tf.math.top_k(tf.reshape(scores, [*shape, parts, part]), min(count, part))
    places += part * tf.range(parts)[:, None]
    chosen = tf.math.top_k(tf.reshape(best, [*shape, -1]), count, sorted=False).indices
    return tf.gather(tf.reshape(places, [*shape, -1]), chosen, batch_dims=3)


def _attend(inputs, causal, in_order, dropout, slices):
    """Computes the attention of some heads.

    `in_order` tells whether queries and keys are the same positions, in ascending order.
    """
    query_mask, key_mask = inputs.query_mask, inputs.key_mask
    if inputs.key is None and key_mask is None:
        key_mask = query_mask
    query, key = prepare(inputs.query, inputs.key)
    query_members, shared = inputs.query_members, inputs.key_members is None
    key_members = query_members if shared else inputs.key_members
    keys, depth = tf.gather(key, key_members, batch_dims=2), query.shape[-1]
    queries = keys if shared else tf.gather(query, query_members, batch_dims=2)
    members = {
        "queries": queries * depth**-0.5,  # [batch, heads, clusters, members, depth]
        "keys": keys,
        "values": tf.gather(inputs.value, key_members, batch_dims=2),
        "query_positions": query_members,
        "key_positions": key_members,
        "real": None if key_mask is None else at_members(tf.cast(key_mask, tf.bool), key_members),
    }
    output = over_blocks(
        lambda part: _attend_clusters(part, causal, in_order, dropout),
        members,
        {"relative_embeddings": inputs.relative_embeddings, "seed": inputs.seed},
        slices,
        inputs.value.dtype,
    )
    output = _mean_at_positions(output, query_members, size(query, 2))
    if query_mask is not None:
        output *= tf.cast(query_mask, output.dtype)[:, None, :, None]
    return output


def _attend_clusters(part, causal, in_order, dropout):
    """Computes attention inside clusters, `[batch, heads, clusters, members, value_depth]`."""

    def attend_rows(rows, columns, seed):
        query, positions = part["queries"][..., rows, :], part["query_positions"][..., rows]
        others = part["key_positions"][..., columns]
        allowed = tf.ones([1, 1, 1, 1, 1], tf.bool)
        if causal:
            # [batch, heads, clusters, queries, keys]
            allowed = others[..., None, :] <= positions[..., None]
        if "real" in part:
            allowed &= part["real"][..., None, columns]
        bias = None
        if "relative_embeddings" in part:
            bias = pair_bias(query, part["relative_embeddings"], positions, others)
        return attend(
            query,
            part["keys"][..., columns, :],
            part["values"][..., columns, :],
            allowed,
            bias=bias,
            bound=logit_bound(query.shape[-1], bias),
            dropout=dropout,
            seed=seed,
        )[0]

    return in_parts(attend_rows, part["queries"].shape[3], in_order, 0, part.get("seed"))


def at_members(x, members):
    """Gathers the entries of `x` `[batch, length]` at each member `[batch, heads, clusters, w]`."""
    flat = tf.reshape(members, [size(members, 0), -1])
    return tf.reshape(tf.gather(x, flat, batch_dims=1), sizes(members))


def _mean_at_positions(output, members, length):
    """Averages the rows of members at each position over the clusters that picked it."""
    rows, segments, shape = rows_of_members(output, members, length)
    means = tf.math.unsorted_segment_mean(rows, segments, shape[0] * shape[1] * length)
    return tf.cast(tf.reshape(means, shape), output.dtype)


def rows_of_members(output, members, length):
    """Flattens the output of members into rows and segments, to put it back in order.

    Args:
        output: `[batch, heads, clusters, w, depth]`.
        members: int `[batch, heads, clusters, w]`, positions.
        length: int, number of positions.

    Returns:
        The rows `[batch * heads * clusters * w, depth]` in float32 (float64 for float64), the
        segment of each, and the shape `[batch, heads, length, depth]` of the result.
    """
    batch, heads, *_, depth = sizes(output)
    sequences = tf.reshape(tf.range(batch * heads), [batch, heads, 1, 1])
    segments = tf.reshape(sequences * length + members, [-1])
    rows = tf.cast(tf.reshape(output, [tf.size(members), depth]), accumulation_dtype(output.dtype))
    return rows, segments, [batch, heads, length, depth]
