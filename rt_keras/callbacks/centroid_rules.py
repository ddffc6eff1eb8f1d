"""The update rules of `CentroidEMA` for centroids and load biases, on tensors."""

import tensorflow as tf


def mean_update(centroids, counts, sums, decay):
    """Moves centroids towards the means of their members and normalizes them.

    Args:
        centroids: `[heads, clusters, depth]`.
        counts: `[sources, heads, clusters]`, number of members among queries and, if separate,
            keys.
        sums: `[sources, heads, clusters, depth]`, sums of the members.
        decay: scalar λ of this update.

    Returns:
        `[heads, clusters, depth]`. A centroid without members keeps its value.
    """
    have_members = tf.cast(counts > 0, counts.dtype)
    means = tf.math.divide_no_nan(sums, counts[..., None])
    sources = tf.reduce_sum(have_members, axis=0)
    mean = tf.math.divide_no_nan(tf.reduce_sum(means, axis=0), sources[..., None])
    moved = tf.math.l2_normalize(decay * centroids + (1 - decay) * mean, axis=-1)
    return tf.where(sources[..., None] > 0, moved, centroids)


def moving_averages(average_counts, average_sums, counts, sums, decay):
    """Updates the moving averages of counts and sums, once for each source.

    Args:
        average_counts: `[heads, clusters]`.
        average_sums: `[heads, clusters, depth]`.
        counts: `[sources, heads, clusters]`, members in a batch.
        sums: `[sources, heads, clusters, depth]`, sums of the members.
        decay: scalar λ of one update.

    Returns:
        Both averages, with unchanged shapes.
    """
    for count, total in zip(tf.unstack(counts), tf.unstack(sums)):
        average_counts = decay * average_counts + (1 - decay) * count
        average_sums = decay * average_sums + (1 - decay) * total
    return average_counts, average_sums


def count_update(centroids, counts, average_counts, average_sums):
    """Computes centroids as moving averages of their members.

    ```
    centroid_c = sum_c / ((count_c + ε) / (N + clusters ε) N),   N = sum of the counts, ε = 1e-5
    ```

    Args:
        centroids: `[heads, clusters, depth]`.
        counts: `[sources, heads, clusters]`, members in the last batch.
        average_counts: `[heads, clusters]`.
        average_sums: `[heads, clusters, depth]`.

    Returns:
        `[heads, clusters, depth]`. A centroid without members in the last batch keeps its value.
    """
    total = tf.reduce_sum(average_counts, axis=-1, keepdims=True)
    clusters = tf.cast(tf.shape(average_counts)[-1], total.dtype)
    smoothed = (average_counts + 1e-5) / (total + clusters * 1e-5) * total
    moved = tf.math.divide_no_nan(average_sums, smoothed[..., None])
    return tf.where((tf.reduce_sum(counts, axis=0) > 0)[..., None], moved, centroids)


def moved_load_bias(load_bias, members, step):
    """Moves load biases against the load of their clusters, and centers those of each head on 0.

    Args:
        load_bias: `[heads, clusters]`.
        members: `[heads, clusters]`, members of each cluster since the last update.
        step: scalar, the maximum change of a bias.

    Returns:
        `[heads, clusters]`. A head without members keeps its biases.
    """
    mean = tf.reduce_mean(members, axis=-1, keepdims=True)
    moved = load_bias - step * tf.clip_by_value(tf.math.divide_no_nan(members, mean) - 1, -1, 1)
    moved -= tf.reduce_mean(moved, axis=-1, keepdims=True)
    return tf.where(mean > 0, moved, load_bias)
