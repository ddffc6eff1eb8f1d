"""Cluster-strided attention: each centroid attends among positions at all distances from it."""

import tensorflow as tf

from rt_keras.ops.blocks import size
from rt_keras.ops.members import cluster_attention
from rt_keras.ops.routing import centroid_scores


def cluster_strided_attention(
    query,
    key,
    value,
    centroids,
    *,
    window_size,
    causal=False,
    query_mask=None,
    key_mask=None,
    token_bias=None,
    relative_embeddings=None,
    relative_values=None,
    reference_block_size=None,
    dropout=0.0,
    seed=None,
):
    """Attention among positions taken at even steps from the nearest to a centroid to the furthest.

    As `balanced_attention`, but where a cluster there has the `window_size` nearest positions, one
    here has every s-th of all n, s = n // window_size, in the order of their scores: the nearest
    first. So a query meets keys unlike itself, and the heads beside it can stay with what is like.

    Args:
        query, key, value, centroids: as those of `balanced_attention`.
        window_size: members of a cluster; all positions where there are fewer.
        causal, query_mask, key_mask, token_bias, relative_embeddings, relative_values,
        reference_block_size, dropout, seed: as those of `balanced_attention`. Padding comes after
            all else in the order, and is never attended to.

    Returns:
        `[batch, heads, queries, value_depth]`.

    Source: the code of Roy et al. 2021, which has it for images; the paper does not describe it.
    As with `balanced_attention`, changing a later token can change an earlier output.

    >>> x = tf.random.normal([1, 2, 12, 4])
    >>> centroids = tf.random.normal([2, 3, 4])
    >>> cluster_strided_attention(x, x, x, centroids, window_size=4).shape
    TensorShape([1, 2, 12, 4])
    """
    return cluster_attention(
        _members,
        {
            "query": query,
            "key": key,
            "value": value,
            "centroids": centroids,
            "relative_embeddings": relative_embeddings,
            "relative_values": relative_values,
        },
        {"query_mask": query_mask, "key_mask": key_mask, "token_bias": token_bias, "seed": seed},
        num_clusters=size(centroids, 1),
        window_size=window_size,
        causal=causal,
        dropout=dropout,
        reference_block_size=reference_block_size,
    )


def _members(x, mask, count, arguments):
    scores = tf.linalg.matrix_transpose(centroid_scores(x, arguments["centroids"]))
    length = size(x, 2)
    if mask is not None:
        scores = tf.where(tf.cast(mask, tf.bool)[:, None, None], scores, scores.dtype.min)
    order = tf.argsort(-scores)
    return order[..., :: length // count][..., :count]
