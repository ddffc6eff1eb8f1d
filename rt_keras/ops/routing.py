"""Functions that both assignments of routing attention share, `balanced.py` and `nearest.py`.

Normalization, scores, the nearest centroid, and the statistics that update centroids.
"""

import tensorflow as tf

from rt_keras.ops.attend import accumulation_dtype
from rt_keras.ops.blocks import repeat_heads

EPSILON = 1e-6


def normalize(x):
    """Computes layer normalization over the depth, with neither scale nor bias.

    ```
    normalize(x) = (x - mean(x)) / sqrt(variance(x) + 1e-6)
    ```

    Args:
        x: `[..., depth]`.

    Returns:
        `[..., depth]`, of norm sqrt(depth), computed in float32 (float64 for float64 input) and
        returned in the dtype of `x`.

    Source: Roy et al. 2021, section 4.1, where it projects vectors onto the unit ball, up to the
    factor sqrt(depth).

    >>> round(float(tf.norm(normalize(tf.constant([1.0, 2.0, 3.0, 4.0])))), 3)
    2.0
    """
    wide = tf.cast(x, accumulation_dtype(x.dtype))
    wide = wide - tf.reduce_mean(wide, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.square(wide), axis=-1, keepdims=True)
    return tf.cast(wide * tf.math.rsqrt(variance + EPSILON), x.dtype)


def centroid_scores(x, centroids, load_bias=None):
    """Computes the score of each vector for each centroid, `x · centroid_c + load_bias_c`.

    Args:
        x: normalized vectors, `[batch, heads, length, depth]`.
        centroids: `[key_heads, clusters, depth]`, each head of which serves heads / key_heads
            consecutive heads of `x`.
        load_bias: `[key_heads, clusters]`, or None for zeros.

    Returns:
        `[batch, heads, length, clusters]` in float32 (float64 for float64 vectors).
    """
    dtype = accumulation_dtype(x.dtype)
    centroids = repeat_heads(tf.cast(centroids, dtype), x.shape[1], axis=0)
    scores = tf.einsum("bhnd,hcd->bhnc", tf.cast(x, dtype), centroids)
    if load_bias is not None:
        scores += repeat_heads(tf.cast(load_bias, dtype), x.shape[1], axis=0)[:, None]
    return tf.stop_gradient(scores)


def nearest_centroid(x, centroids, load_bias=None):
    """Finds the cluster of each vector, `argmax_c x · centroid_c + load_bias_c`.

    Args:
        x: normalized vectors, `[batch, heads, length, depth]`.
        centroids: `[heads, clusters, depth]`.
        load_bias: `[heads, clusters]`, or None for zeros.

    Returns:
        int32 `[batch, heads, length]`.

    Source: Roy et al. 2021, section 4.1, μ(x). The bias follows Wang et al. 2024,
    Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts, section 3.

    >>> x = tf.constant([[[[1.0, -1.0], [-1.0, 1.0]]]])
    >>> nearest_centroid(x, tf.constant([[[1.0, 0.0], [0.0, 1.0]]])).numpy().tolist()
    [[[0, 1]]]
    """
    return tf.argmax(centroid_scores(x, centroids, load_bias), axis=-1, output_type=tf.int32)


def cluster_statistics(x, clusters, num_clusters, mask=None):
    """Computes the sum and the number of each cluster's members over the batch.

    Args:
        x: normalized vectors, `[batch, heads, length, depth]`.
        clusters: int `[batch, heads, length]`, the cluster of each vector.
        num_clusters: int, number of clusters.
        mask: bool `[batch, length]`, False for padding, which is left out; or None.

    Returns:
        Sums `[heads, clusters, depth]` and counts `[heads, clusters]`, float32 (float64 for
        float64 vectors).

    Source: Roy et al. 2021, section 4.1, whose update of the centroids uses the means.

    >>> x = tf.constant([[[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]]])
    >>> sums, counts = cluster_statistics(x, tf.constant([[[0, 1, 0]]]), num_clusters=2)
    >>> sums.numpy().tolist(), counts.numpy().tolist()
    ([[[6.0, 8.0], [3.0, 4.0]]], [[2.0, 1.0]])
    """
    dtype = accumulation_dtype(x.dtype)
    members = tf.one_hot(clusters, num_clusters, dtype=dtype)
    if mask is not None:
        members *= tf.cast(mask, dtype)[:, None, :, None]
    sums = tf.einsum("bhnc,bhnd->hcd", members, tf.cast(x, dtype))
    return tf.stop_gradient(sums), tf.reduce_sum(members, axis=[0, 2])


def prepare(query, key, normalized=True):
    """Converts or normalizes queries and keys; returns one tensor twice if `key` is None."""
    prepared = normalize if normalized else tf.convert_to_tensor
    query = prepared(query)
    return query, query if key is None else prepared(key)


def logit_bound(depth, bias):
    """Returns the bound of the logits of normalized vectors, sqrt(depth); None with a bias."""
    return depth**0.5 if bias is None else None


def commitment(x, clusters, centroids, mask=None):
    """Computes the mean squared distance of vectors to the centroids of their clusters.

    ```
    mean over the positions of ‖x - centroid_μ(x)‖²
    ```

    Args:
        x: normalized vectors, `[batch, heads, length, depth]`.
        clusters: int `[batch, heads, length]`, the cluster μ(x) of each vector.
        centroids: `[heads, clusters, depth]`.
        mask: bool `[batch, length]`, False for padding, which is left out; or None.

    Returns:
        A scalar, float32 (float64 for float64 vectors); 0 if there are no vectors but padding.

    Source: van den Oord et al. 2017, Neural Discrete Representation Learning, section 3.2.

    >>> x, centroids = tf.constant([[[[1.0, 2.0]]]]), tf.constant([[[0.0, 0.0], [1.0, 0.0]]])
    >>> float(commitment(x, tf.constant([[[1]]]), centroids))
    4.0
    """
    dtype = accumulation_dtype(x.dtype)
    members = tf.one_hot(clusters, centroids.shape[1], dtype=dtype)
    nearest = tf.einsum("bhnc,hcd->bhnd", members, tf.cast(centroids, dtype))
    distance = tf.reduce_sum(tf.square(tf.cast(x, dtype) - nearest), axis=-1)
    if mask is None:
        any_vector = tf.cast(tf.minimum(tf.size(distance), 1), dtype)
        return tf.math.multiply_no_nan(tf.reduce_mean(distance), any_vector)
    weight = tf.broadcast_to(tf.cast(mask, dtype)[:, None], tf.shape(distance))
    return tf.math.divide_no_nan(tf.reduce_sum(distance * weight), tf.reduce_sum(weight))
