"""Cluster-strided attention: each centroid attends among positions at all distances from it."""

import tensorflow as tf

from rt_keras.ops.blocks import size
from rt_keras.ops.members import cluster_attention
from rt_keras.ops.routing import centroid_scores


def cluster_strided_attention(query, key, value, centroids, *, window_size, **options):
    """Attention inside clusters of positions that are evenly spaced in the order of their scores.

    Unlike in `balanced_attention`, the members of a cluster are not its `window_size` nearest
    positions. Of all n positions, sorted by score from the highest, it picks `window_size` at steps
    of n // window_size. Padding comes last in that order. Queries therefore attend to keys unlike
    themselves, while other kinds of heads attend to similar ones.

    Args:
        query: `[batch, heads, queries, depth]`, not normalized.
        key: `[batch, heads, keys, depth]`, or None for the queries themselves.
        value: `[batch, heads, keys, value_depth]`.
        centroids: `[heads, clusters, depth]`.
        window_size: int, members of a cluster; all positions if there are fewer.
        **options: `causal`, `query_mask`, `key_mask`, `relative_embeddings`, `dropout` and `seed`
            of `balanced_attention`.

    Returns:
        `[batch, heads, queries, value_depth]`.

    Source: the code of Roy et al. 2021, which uses it for images; the paper does not describe it.
    As with `balanced_attention`, changing a later token can change an earlier output.

    >>> x = tf.random.normal([1, 2, 12, 4])
    >>> centroids = tf.random.normal([2, 3, 4])
    >>> cluster_strided_attention(x, x, x, centroids, window_size=4).shape
    TensorShape([1, 2, 12, 4])
    """
    weights = {"centroids": centroids}
    options |= {"num_clusters": size(centroids, 1), "window_size": window_size}
    return cluster_attention(strided_members, weights, query, key, value, **options)


def strided_members(x, mask, count, weights):
    """Picks evenly spaced positions in the order of their scores for each of the "centroids".

    Args:
        x: normalized vectors, `[batch, heads, length, depth]`.
        mask: bool `[batch, length]`, False for positions that come last, or None.
        count: int, number of members.
        weights: dictionary with "centroids", `[heads, clusters, depth]`.

    Returns:
        int32 `[batch, heads, clusters, count]`.
    """
    scores = tf.linalg.matrix_transpose(centroid_scores(x, weights["centroids"]))
    length = size(x, 2)
    if mask is not None:
        scores = tf.where(tf.cast(mask, tf.bool)[:, None, None], scores, scores.dtype.min)
    order = tf.argsort(-scores)
    # An empty sequence has no members and no step.
    return tf.gather(order, tf.range(count) * (length // tf.maximum(count, 1)), axis=-1)
