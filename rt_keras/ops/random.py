"""Random routing: clusters whose members are drawn at random, the baseline of routing."""

import numpy as np
import tensorflow as tf

from rt_keras.ops.balanced import cluster_attention, naive_cluster_attention, top_members
from rt_keras.ops.blocks import size

# Steps of the mixing of bits: a shift and a factor.
MIXING = ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1))


def naive_random_attention(query, key, value, *, num_clusters, routing_seed, **options):
    """The equation of `random_attention`: members have the highest random numbers."""

    def score(x):
        shape = [query.shape[1], num_clusters, x.shape[2]]
        numbers = [naive_random_score(*routing_seed[h], c, j) for h, c, j in np.ndindex(*shape)]
        return np.broadcast_to(np.reshape(numbers, shape), [len(x), *shape])

    return naive_cluster_attention(query, key, value, score, **options)


def naive_random_score(*parts):
    """The random number of (seed, seed, cluster, position)."""
    mixed = 0
    for part in parts:
        mixed = ((mixed ^ int(part)) + 0x9E3779B9) % 2**32
        for shift, factor in MIXING:
            mixed = (mixed ^ mixed >> shift) * factor % 2**32
    return mixed >> 8


def random_attention(
    query,
    key,
    value,
    *,
    num_clusters,
    window_size,
    routing_seed,
    causal=False,
    query_mask=None,
    key_mask=None,
    relative_embeddings=None,
    dropout=0.0,
    seed=None,
):
    """Attention inside clusters whose members are drawn at random, regardless of content.

    Like `balanced_attention`, but with random numbers as scores: Q_c and K_c are the `window_size`
    positions with the highest ones, the same in all sequences of equal length. Only the attention
    inside clusters depends on content, which makes it the baseline of routing. With `causal`,
    output i only depends on positions up to i.

    Args:
        query: `[batch, heads, queries, depth]`, not normalized.
        key: `[batch, heads, keys, depth]`, or None for the queries themselves.
        value: `[batch, heads, keys, value_depth]`.
        num_clusters: int, number of clusters.
        window_size: int, members of a cluster; all positions if there are fewer.
        routing_seed: int `[heads, 2]`, seeds from which each head draws its members.
        causal, query_mask, key_mask, relative_embeddings, dropout, seed: see `balanced_attention`.

    Returns:
        `[batch, heads, queries, value_depth]`.

    Source: Roy et al. 2021, section 5.1, the Random Transformer.

    >>> x = tf.random.normal([1, 2, 12, 4])
    >>> seeds = tf.constant([[1, 2], [3, 4]])
    >>> random_attention(
    ...     x, x, x, num_clusters=3, window_size=4, routing_seed=seeds, causal=True
    ... ).shape
    TensorShape([1, 2, 12, 4])
    """

    def pick_members(x, mask, count, weights):
        length = size(x, 2)
        scores = random_scores(weights["routing_seed"], num_clusters, length)
        scores = tf.broadcast_to(scores[None], [size(x, 0), x.shape[1], num_clusters, length])
        return top_members(scores, mask, count)

    return cluster_attention(
        pick_members,
        {"routing_seed": routing_seed},
        query,
        key,
        value,
        num_clusters,
        window_size,
        causal=causal,
        query_mask=query_mask,
        key_mask=key_mask,
        relative_embeddings=relative_embeddings,
        dropout=dropout,
        seed=seed,
    )


def random_scores(seeds, num_clusters, length):
    """Draws random numbers by head, cluster and position, the same on every device.

    TensorFlow's own numbers differ between XLA and eager execution and between devices, so members
    would change from training to evaluation.

    Args:
        seeds: int `[heads, 2]`, the seeds of each head.
        num_clusters: int, number of clusters.
        length: int, number of positions.

    Returns:
        `[heads, clusters, length]`, float32, whole numbers from 0 to 2^24 - 1.

    Source: the mixing of bits is the last step of MurmurHash3 (Appleby 2011).

    >>> bool(tf.reduce_all(random_scores([[1, 2]], 3, 4) == random_scores([[1, 2]], 3, 9)[..., :4]))
    True
    """
    seeds = tf.cast(seeds, tf.uint32)[:, :, None, None]
    clusters = tf.cast(tf.range(num_clusters), tf.uint32)[:, None]
    positions = tf.cast(tf.range(length), tf.uint32)
    mixed = tf.zeros([1, 1, 1], tf.uint32)
    for part in (seeds[:, 0], seeds[:, 1], clusters, positions):
        mixed = mix(tf.bitwise.bitwise_xor(mixed, part) + tf.constant(0x9E3779B9, tf.uint32))
    return tf.cast(tf.bitwise.right_shift(mixed, tf.constant(8, tf.uint32)), tf.float32)


def mix(x, steps=MIXING):
    """Permutes all uint32 numbers such that every bit depends on every bit."""
    for shift, factor in steps:
        x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, tf.constant(shift, tf.uint32)))
        x *= tf.constant(factor, tf.uint32)
    return x
