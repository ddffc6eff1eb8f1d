"""Hashed routing: clusters by the signs of random projections, as in the Reformer."""

import tensorflow as tf

from rt_keras.ops.attend import accumulation_dtype
from rt_keras.ops.members import cluster_attention, top_members


def hashed_attention(
    query,
    key,
    value,
    projections,
    *,
    num_clusters,
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
    """Attention inside buckets of a locality-sensitive hash.

    The bucket of a normalised vector x is the number whose i-th bit says whether
    `projection_i · x > 0`. A cluster's members are the first `window_size` positions in its
    bucket, filled up with the first of those outside; all else is as in `balanced_attention`.

    Args:
        query, key, value: as those of `balanced_attention`.
        projections: `[heads, bits, depth]`.
        num_clusters: how many buckets are used, at most 2^bits; what falls into another attends
            nowhere but where it fills up a bucket.
        window_size: members of a cluster; all positions where there are fewer.
        causal, query_mask, key_mask, token_bias, relative_embeddings, relative_values,
        reference_block_size, dropout, seed: as those of `balanced_attention`.

    Returns:
        `[batch, heads, queries, value_depth]`.

    Source: Kitaev et al. 2020, Reformer, section 2; in this form the code of Roy et al. 2021,
    section 5.2. Whether a position joins a bucket depends on what comes before it alone, but
    whether it fills one up depends on all.

    >>> x = tf.random.normal([1, 2, 12, 4])
    >>> projections = tf.random.normal([2, 2, 4])
    >>> hashed_attention(x, x, x, projections, num_clusters=4, window_size=4).shape
    TensorShape([1, 2, 12, 4])
    """

    def members(x, mask, count, arguments):
        buckets = hash_buckets(x, arguments["projections"])
        scores = tf.one_hot(buckets, num_clusters, axis=2, dtype=tf.float32)
        return top_members(scores, mask, count)

    return cluster_attention(
        members,
        {
            "query": query,
            "key": key,
            "value": value,
            "projections": projections,
            "relative_embeddings": relative_embeddings,
            "relative_values": relative_values,
        },
        {"query_mask": query_mask, "key_mask": key_mask, "token_bias": token_bias, "seed": seed},
        num_clusters=num_clusters,
        window_size=window_size,
        causal=causal,
        dropout=dropout,
        reference_block_size=reference_block_size,
    )


def hash_buckets(x, projections):
    """The bucket of each vector, `sum_i 2^i [projection_i · x > 0]`.

    Args:
        x: `[batch, heads, length, depth]`.
        projections: `[heads, bits, depth]`.

    Returns:
        int32 `[batch, heads, length]`.

    >>> x = tf.constant([[[[1.0, 2.0], [-1.0, 2.0]]]])
    >>> hash_buckets(x, tf.constant([[[1.0, 0.0], [0.0, 1.0]]])).numpy().tolist()
    [[[3, 2]]]
    """
    dtype = accumulation_dtype(x.dtype)
    sides = tf.einsum("bhnd,hpd->bhnp", tf.cast(x, dtype), tf.cast(projections, dtype)) > 0
    return tf.reduce_sum(tf.cast(sides, tf.int32) * 2 ** tf.range(sides.shape[-1]), axis=-1)
