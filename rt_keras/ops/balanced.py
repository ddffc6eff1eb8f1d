"""Routing attention with balanced clusters: each centroid picks its nearest positions."""

import tensorflow as tf

from rt_keras.ops.attend import accumulation_dtype
from rt_keras.ops.blocks import ceil_div, move_axis, size
from rt_keras.ops.members import cluster_attention, top_members
from rt_keras.ops.slices import smallest_divisor


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
