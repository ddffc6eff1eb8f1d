"""Relative positions: vectors of the distances between queries and keys."""

import math

import keras
import numpy as np
import tensorflow as tf

from rt_keras.layers.head_options import one_of, positive_int, true_or_false

TYPES = ("learned", "sinusoidal")


class RelativePositions(keras.layers.Layer):
    """Vectors r_d of the distances d = i - j between a query i and a key j.

    With m the `max_relative_distance`, above which distances count as m:

    ```
    logit_ij = query_i · (key_j + r_d) / sqrt(depth)                            "learned"
    logit_ij = ((query_i + u) · key_j + (query_i + v) · W R_d) / sqrt(depth)    "sinusoidal"
    ```

    where each head learns r, u, v and W, and R_d are sines and cosines of d. Without
    `position_biases`, there are no u and v. The second type is reduced to the first, which all ops
    support, by adding one dimension to queries, keys and r.

    Args:
        max_relative_distance: int m, largest distance.
        relative_positions: string, "learned" or "sinusoidal". Defaults to "learned".
        position_biases: bool, whether sinusoidal positions have query biases, u and v. Defaults to
            True.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Raises:
        ValueError: if `max_relative_distance` is not a positive integer or the type is unknown.

    Source: learned: Shaw et al. 2018, section 3.2; sinusoidal: Dai et al. 2019, Transformer-XL,
    section 3.3.

    >>> positions = RelativePositions(max_relative_distance=3)
    >>> positions.build((1, 2, 10, 8))
    >>> positions.table().shape
    TensorShape([2, 7, 8])
    """

    def __init__(
        self, max_relative_distance, relative_positions="learned", position_biases=True, **kwargs
    ):
        super().__init__(**kwargs)
        self.max_relative_distance = positive_int("max_relative_distance", max_relative_distance)
        self.is_sinusoidal = one_of("relative_positions", relative_positions, *TYPES) == TYPES[1]
        self.has_biases = self.is_sinusoidal and true_or_false("position_biases", position_biases)

    def build(self, query_shape):
        _, heads, _, depth = query_shape
        if not self.is_sinusoidal:
            rows = 2 * self.max_relative_distance + 1
            self.relative_embeddings = self.add_weight(
                name="relative_embeddings",
                shape=(heads, rows, depth),
                initializer=noise(depth**-0.5),
            )
            return
        sines = 2 * math.ceil(heads * depth / 2)
        self.relative_kernel = self.add_weight(
            name="relative_kernel", shape=(heads, sines, depth), initializer=noise(sines**-0.5)
        )
        if self.has_biases:
            shape = (heads, depth)
            self.content_bias = self.add_weight(shape, "zeros", name="content_bias")
            self.position_bias = self.add_weight(shape, "zeros", name="position_bias")

    def place(self, query, key):
        """Returns queries and keys in the form that the ops expect."""
        if not self.has_biases:
            return query, key
        depth = query.shape[3]
        query = query + tf.cast(self.content_bias, query.dtype)[:, None]
        # [batch, heads, length, depth + 1]
        query = tf.concat([query, tf.ones_like(query[..., :1])], axis=3)
        # The ops divide by the square root of the new depth.
        query *= math.sqrt((depth + 1) / depth)
        return query, tf.concat([key, tf.zeros_like(key[..., :1])], axis=3)

    def table(self):
        """Returns the vectors r of the distances -m ... m, `[heads, 2 m + 1, depth]`."""
        if not self.is_sinusoidal:
            return tf.convert_to_tensor(self.relative_embeddings)
        distances = np.arange(-self.max_relative_distance, self.max_relative_distance + 1)
        kernel = tf.convert_to_tensor(self.relative_kernel)
        sines = tf.constant(waves(distances, kernel.shape[1]), kernel.dtype)
        # [2 m + 1, sines] and [heads, sines, depth] to [heads, 2 m + 1, depth]
        vectors = tf.einsum("ns,hsd->hnd", sines, kernel)
        if not self.has_biases:
            return vectors
        difference = tf.convert_to_tensor(self.position_bias) - self.content_bias
        bias = tf.einsum("hnd,hd->hn", vectors, difference)[..., None]
        return tf.concat([vectors, bias], axis=2)  # [heads, 2 m + 1, depth + 1]


def make_relative_positions(
    max_relative_distance, relative_positions="learned", position_biases=True, dtype=None
):
    """Returns the `RelativePositions` of heads or of a set of keys; None without a distance.

    Raises:
        ValueError: if the arguments are out of range, or a type other than "learned" has no
            `max_relative_distance`.
    """
    if max_relative_distance is not None:
        return RelativePositions(
            max_relative_distance,
            relative_positions,
            position_biases,
            dtype=dtype,
            name="relative_positions",
        )
    if one_of("relative_positions", relative_positions, *TYPES) != "learned":
        raise ValueError(
            f"relative_positions={relative_positions!r} needs a max_relative_distance. Received: "
            "max_relative_distance=None"
        )
    return None


def noise(stddev):
    """Returns the initializer of normal noise."""
    return keras.initializers.RandomNormal(stddev=stddev)


def waves(distances, width):
    """Computes sines and cosines of distances, as in Transformer-XL.

    Args:
        distances: int array `[n]`.
        width: int, an even number.

    Returns:
        float array `[n, width]`, sines first.

    >>> waves(np.array([0, 1]), 2).round(2).tolist()
    [[0.0, 1.0], [0.84, 0.54]]
    """
    angles = np.outer(distances, 10_000.0 ** (-np.arange(0, width, 2) / width))
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
