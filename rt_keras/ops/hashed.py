"""Attention inside buckets by the signs of random projections, as in the Reformer."""

import functools

import tensorflow as tf

from rt_keras.ops.attend import accumulation_dtype
from rt_keras.ops.members import cluster_attention, top_members


def hashed_attention(query, key, value, projections, *, num_buckets, window_size, **options):
    """Attention inside buckets of a locality-sensitive hash.

    The i-th bit of a normalized vector's bucket is 1 if `projection_i · x > 0`. The members of a
    bucket are the first `window_size` positions in it, followed by the first positions outside of
    it if there are fewer. Otherwise attention is that of `balanced_attention`.

    Args:
        query: `[batch, heads, queries, depth]`, not normalized.
        key: `[batch, heads, keys, depth]`, or None for the queries themselves.
        value: `[batch, heads, keys, value_depth]`.
        projections: `[heads, bits, depth]`.
        num_buckets: int, number of buckets that are used, at most 2^bits. A position in another
            bucket attends only if it completes one of these.
        window_size: int, members of a bucket; all positions if there are fewer.
        **options: `causal`, `query_mask`, `key_mask`, `relative_embeddings`, `dropout` and `seed`
            of `balanced_attention`.

    Returns:
        `[batch, heads, queries, value_depth]`.

    Source: Kitaev et al. 2020, Reformer, section 2; in this form the code of Roy et al. 2021,
    section 5.2. Whether a position joins its bucket only depends on earlier positions, but whether
    it completes another one depends on all positions.

    >>> x = tf.random.normal([1, 2, 12, 4])
    >>> projections = tf.random.normal([2, 2, 4])
    >>> hashed_attention(x, x, x, projections, num_buckets=4, window_size=4).shape
    TensorShape([1, 2, 12, 4])
    """
    members = functools.partial(bucket_members, num_buckets)
    options |= {"num_clusters": num_buckets, "window_size": window_size}
    return cluster_attention(members, {"projections": projections}, query, key, value, **options)


def bucket_members(num_buckets, x, mask, count, weights):
    """Picks the first `count` positions in each bucket, then the first ones outside of it.

    Args:
        num_buckets: int, number of buckets that are used.
        x: normalized vectors, `[batch, heads, length, depth]`.
        mask: bool `[batch, length]`, False for positions that are picked last, or None.
        count: int, number of members.
        weights: dictionary with "projections", `[heads, bits, depth]`.

    Returns:
        int32 `[batch, heads, num_buckets, count]`, in any order.
    """
    buckets = hash_buckets(x, weights["projections"])
    scores = tf.one_hot(buckets, num_buckets, axis=2, dtype=tf.float32)
    return top_members(scores, mask, count)


def hash_buckets(x, projections):
    """Computes the bucket of each vector, `sum_i 2^i [projection_i · x > 0]`.

    Args:
        x: `[batch, heads, length, depth]`.
        projections: `[heads, bits, depth]`.

    Returns:
        int32 `[batch, heads, length]`.

    Source: the hash of `hashed_attention`.

    >>> x = tf.constant([[[[1.0, 2.0], [-1.0, 2.0]]]])
    >>> hash_buckets(x, tf.constant([[[1.0, 0.0], [0.0, 1.0]]])).numpy().tolist()
    [[[3, 2]]]
    """
    dtype = accumulation_dtype(x.dtype)
    sides = tf.einsum("bhnd,hpd->bhnp", tf.cast(x, dtype), tf.cast(projections, dtype)) > 0
    return tf.reduce_sum(tf.cast(sides, tf.int32) * 2 ** tf.range(sides.shape[-1]), axis=-1)
