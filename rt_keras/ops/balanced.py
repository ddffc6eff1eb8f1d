"""Routing attention with balanced clusters: each centroid picks its nearest positions."""

import tensorflow as tf

from rt_keras.ops.attend import accumulation_dtype, attend, in_parts
from rt_keras.ops.blocks import ceil_div, move_axis, pad_axis, size, sizes, smaller
from rt_keras.ops.nearest.assign import logit_bound, normalize, prepare
from rt_keras.ops.relative import pair_bias
from rt_keras.ops.slices import over_blocks, over_heads, slices_of_blocks, smallest_divisor


def balanced_attention(query, key, value, centroids, *, window_size, **options):
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
        **options: options of every kind of clusters that pick their members:

            - `causal`: bool, whether query i sees key j only if j <= i. Defaults to False.
            - `query_mask`: bool `[batch, queries]`, False for padding, whose output is 0 and which
              is a member only if there are too few other positions; or None.
            - `key_mask`: bool `[batch, keys]`, False for padding, which no query sees and which is
              a member only if there are too few other positions; or None.
            - `relative_embeddings`: `[heads, 2 m + 1, depth]`, r above; distances are clipped to
              ±m. None for no relative positions.
            - `dropout`: float, share of the attention weights set to 0. Defaults to 0.
            - `seed`: int `[2]`, needed if `dropout` is above 0.

    Returns:
        `[batch, heads, queries, value_depth]`.

    Source: Roy et al. 2021, section 4.1 and algorithm 1.

    >>> x = tf.random.normal([1, 2, 12, 4])
    >>> centroids = tf.random.normal([2, 3, 4])
    >>> balanced_attention(x, None, x, centroids, window_size=4, causal=True).shape
    TensorShape([1, 2, 12, 4])
    """
    weights = {"centroids": centroids}
    options |= {"num_clusters": size(centroids, 1), "window_size": window_size}
    return cluster_attention(nearest_members, weights, query, key, value, **options)


# Maximum number of scores, one for each centroid and position, that are computed at once.
MAX_SCORES = 2**24


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
    centroids = weights["centroids"]
    heads, clusters, depth = centroids.shape
    scores = size(x, 0) * heads * clusters * size(x, 2)
    chunks = _num_chunks(clusters, scores)
    if chunks == 1:
        return _nearest_to(centroids, x, mask, count)
    groups = move_axis(tf.reshape(centroids, [heads, chunks, clusters // chunks, depth]), 1, 0)
    found = tf.map_fn(
        lambda group: _nearest_to(group, x, mask, count), groups, fn_output_signature=tf.int32
    )
    return tf.reshape(move_axis(found, 0, 2), [size(x, 0), heads, clusters, -1])


def _num_chunks(clusters, scores):
    """Number of chunks of clusters that keeps the scores of a chunk under the limit."""
    if not isinstance(scores, int) or scores <= MAX_SCORES:
        return 1
    return smallest_divisor(clusters, ceil_div(scores, MAX_SCORES))


def _nearest_to(centroids, x, mask, count):
    """The positions that score highest for each centroid, `[batch, heads, clusters, count]`."""
    dtype = accumulation_dtype(x.dtype)
    centroids = tf.cast(centroids, dtype)[None]
    # Not the transpose of `centroid_scores`, which takes twice as long if there are many clusters.
    scores = tf.stop_gradient(tf.matmul(centroids, tf.cast(x, dtype), transpose_b=True))
    return top_members(scores, mask, count)


def cluster_attention(
    pick_members,
    weights,
    query,
    key,
    value,
    *,
    num_clusters,
    window_size,
    causal=False,
    query_mask=None,
    key_mask=None,
    relative_embeddings=None,
    dropout=0.0,
    seed=None,
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
        query: `[batch, heads, queries, depth]`, not normalized.
        key: `[batch, heads, keys, depth]`, or None for the queries themselves.
        value: `[batch, heads, keys, value_depth]`.
        num_clusters: int, number of clusters.
        window_size: int, members of a cluster; all positions if there are fewer.
        causal: bool, whether query i sees key j only if j <= i.
        query_mask: bool `[batch, queries]`, False for padding, or None.
        key_mask: bool `[batch, keys]`, False for padding, or None.
        relative_embeddings: `[heads, 2 m + 1, depth]`, r above, or None.
        dropout: float, share of the attention weights set to 0.
        seed: int `[2]`, needed if `dropout` is above 0.

    Returns:
        `[batch, heads, queries, value_depth]`.
    """
    logits = num_logits(query, num_clusters, window_size)
    same = key is None and (key_mask is None or key_mask is query_mask)
    in_order = causal and same

    # Members are picked outside of the attention, whose gradient may recompute it.
    def members_of(x, mask):
        return _pick(pick_members, weights, x, mask, window_size, in_order, logits)

    activations = {
        "query": query,
        "key": key,
        "value": value,
        "of_queries": members_of(query, query_mask),
        "of_keys": None if same else members_of(query if key is None else key, key_mask),
    }
    chunks = smallest_divisor(num_clusters, slices_of_blocks(query.shape[1], logits))
    return over_heads(
        lambda arguments: _attend(arguments, causal, in_order, dropout, chunks),
        activations,
        {"relative_embeddings": relative_embeddings},
        {"query_mask": query_mask, "key_mask": key_mask, "seed": seed},
        logits,
        value.dtype,
    )


def num_logits(query, num_clusters, window_size):
    """Returns the number of attention logits of all clusters of all heads."""
    return size(query, 0) * query.shape[1] * num_clusters * window_size**2


def _pick(pick_members, weights, x, mask, window_size, in_order, logits):
    """Picks the members of each cluster from the positions of `x`.

    Args:
        pick_members, weights, window_size: see `cluster_attention`.
        x: queries or keys.
        mask: bool `[batch, length]`, False for padding, or None.
        in_order: bool, whether members must be in ascending order.
        logits: int, number of attention logits of these members, which determines the chunks of
            heads.

    Returns:
        int `[batch, heads, clusters, members]`.
    """

    def pick(arguments):
        x = normalize(arguments["query"])
        count = smaller(window_size, size(x, 2))
        found = pick_members(x, arguments.get("mask"), count, arguments)
        return tf.sort(found, axis=-1) if in_order else found

    return over_heads(
        pick, {"query": tf.stop_gradient(x)}, weights, {"mask": mask}, logits, tf.int32
    )


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


# XLA sorts longer rows part by part if a thousand or more indices are requested. On a CPU this
# takes 40 times as long as finding the best of each part, and the best of those.
LONGEST_ROW = 2**19 - 1


def _top_of_parts(scores, parts, count):
    """Finds the indices of the highest scores of each row, in each of its parts first."""
    *shape, length = sizes(scores)
    part = ceil_div(length, parts)
    scores = pad_axis(scores, 3, 0, parts * part - length, scores.dtype.min)
    best, places = tf.math.top_k(tf.reshape(scores, [*shape, parts, part]), min(count, part))
    places += part * tf.range(parts)[:, None]
    chosen = tf.math.top_k(tf.reshape(best, [*shape, -1]), count, sorted=False).indices
    return tf.gather(tf.reshape(places, [*shape, -1]), chosen, batch_dims=3)


def _attend(arguments, causal, in_order, dropout, chunks):
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
        "real": None if key_mask is None else at_members(tf.cast(key_mask, tf.bool), of_keys),
    }
    output = over_blocks(
        lambda part: _attend_clusters(part, depth, causal, in_order, dropout),
        members,
        {name: arguments.get(name) for name in ("relative_embeddings", "seed")},
        chunks,
        members["values"].dtype,
    )
    output = _put_back(output, of_queries, size(query, 2))
    if query_mask is not None:
        output *= tf.cast(query_mask, output.dtype)[:, None, :, None]
    return output


def _attend_clusters(members, depth, causal, in_order, dropout):
    """Computes attention inside clusters, to keys up to each query if causal.

    Args:
        members: dictionary of tensors of the members, `[batch, heads, clusters, members, ...]`;
            queries are scaled.
        depth: int, depth of queries and keys.
        causal: bool, whether query i sees key j only if j <= i.
        in_order: bool, whether queries and keys are the same positions, in ascending order.
        dropout: float, share of the attention weights set to 0.
    """

    def attend_rows(rows, seen, seed):
        queries, of_queries = members["queries"][..., rows, :], members["of_queries"][..., rows]
        of_keys = members["of_keys"][..., seen]
        allowed = tf.ones([1, 1, 1, 1, 1], tf.bool)
        if causal:
            allowed = of_keys[..., None, :] <= of_queries[..., None]
        if "real" in members:
            allowed &= members["real"][..., None, seen]
        bias = None
        if "relative_embeddings" in members:
            bias = pair_bias(queries, members["relative_embeddings"], of_queries, of_keys)
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


def at_members(x, members):
    """Gathers the entries of `x` `[batch, length]` at each member `[batch, heads, clusters, w]`."""
    flat = tf.reshape(members, [size(members, 0), -1])
    return tf.reshape(tf.gather(x, flat, batch_dims=1), sizes(members))


def _put_back(output, members, length):
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
