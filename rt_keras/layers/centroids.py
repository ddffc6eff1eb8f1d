"""Centroids, which learn by online k-means."""

import warnings

import keras
import tensorflow as tf

from rt_keras.layers.dropout import replica_number
from rt_keras.layers.head_options import number_from_0, positive_int
from rt_keras.layers.layers_inside import layers_inside
from rt_keras.ops.blocks import fold_heads, larger, move_axis, pad_axis, repeat_heads, sizes
from rt_keras.ops.nearest.assign import cluster_statistics, commitment, nearest_centroid, normalize


class Centroids(keras.layers.Layer):
    """The centroids of the clusters of heads, with the statistics by which they learn.

    Centroids are not trained by gradient. In training, `collect_statistics` adds up the sum and the
    number of the queries and keys nearest to each centroid. After each batch, the callback
    `rt_keras.callbacks.CentroidEMA` uses these statistics to update the centroids and the load
    bias, and resets them. The commitment loss, `commitment_weight * mean ‖x - centroid_μ(x)‖²` for
    queries and keys each, is added to the model's loss. With `trainable=False`, no statistics are
    collected and centroids are not updated.

    Heads that share keys (grouped-query attention) also share centroids, which learn from the
    queries of all these heads. Where each head ranks all positions by itself, as with assignment
    "balanced", it has centroids of its own.

    Args:
        num_clusters: int, number of centroids per head.
        commitment_weight: float β, weight of the commitment loss. Defaults to 1e-4.
        seed: int or None, seed of the initial centroids, which are normalized Gaussian noise, and
            of the choice of members for restarts. Defaults to None.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Weights:
        centroids: `[heads, clusters, depth]`. The number of heads, here and below, is that of the
            keys if heads share centroids.
        load_bias: `[heads, clusters]`, added to the scores when the nearest centroid is chosen.
        average_counts, average_sums: `[heads, clusters]` and `[heads, clusters, depth]`, moving
            averages of the update "count".
        member_counts, member_sums: `[sources, heads, clusters]` and
            `[sources, heads, clusters, depth]`, statistics since the last update, summed over all
            replicas. The sources are queries and, if separate, keys.
        member_batches: scalar, number of batches in the statistics.
        member_samples: `[heads, clusters, depth]`, random queries of the last batch, for centroids
            that are initialized from members.
        updates: scalar, number of updates of the centroids.
        empty_batches: `[heads, clusters]`, number of batches since each cluster became empty.
    None of them is trainable. They are float32, or float64 under that policy.

    Raises:
        ValueError: if a number is out of range.

    Source: Roy et al. 2021, section 4.1.

    >>> centroids = Centroids(num_clusters=3)
    >>> centroids.build((1, 2, 10, 8), sources=1)
    >>> centroids.centroids.shape
    TensorShape([2, 3, 8])
    """

    # Set by CentroidEMA. Without it, the centroids would keep their initial values.
    has_updates = False

    def __init__(self, num_clusters, commitment_weight=1e-4, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.num_clusters = positive_int("num_clusters", num_clusters)
        self.commitment_weight = number_from_0("commitment_weight", commitment_weight)
        self.seed_generator = keras.random.SeedGenerator(seed)

    def build(self, shape, sources):
        """Creates the weights.

        Args:
            shape: `(batch, heads, length, depth)` of the clustered vectors.
            sources: int, 1 if only queries are clustered and 2 for queries and keys.
        """
        _, heads, _, depth = shape
        clusters = self.num_clusters
        self.centroids = self._add_state("centroids", heads, clusters, depth, noise=True)
        self.load_bias = self._add_state("load_bias", heads, clusters)
        self.average_counts = self._add_state("average_counts", heads, clusters)
        self.average_sums = self._add_state("average_sums", heads, clusters, depth)
        # Each replica has separate statistics. Reading them returns their sum.
        summed = {"aggregation": "sum", "synchronization": "on_read"}
        counts = (sources, heads, clusters)
        self.member_counts = self._add_state("member_counts", *counts, **summed)
        self.member_sums = self._add_state("member_sums", *counts, depth, **summed)
        self.member_batches = self._add_state("member_batches", **summed)
        self.member_samples = self._add_state("member_samples", heads, clusters, depth, **summed)
        self.updates = self._add_state("updates")
        self.empty_batches = self._add_state("empty_batches", heads, clusters)

    def _add_state(self, name, *shape, noise=False, **distribution):
        # add_weight does not support `synchronization`.
        return keras.Variable(
            self._unit_noise if noise else "zeros",
            shape=shape,
            dtype="float64" if self.compute_dtype == "float64" else "float32",
            trainable=False,
            autocast=False,
            name=name,
            **distribution,
        )

    def _unit_noise(self, shape, dtype=None):
        noise = keras.random.normal(shape, dtype=dtype, seed=self.seed_generator)
        return keras.ops.normalize(noise, axis=-1)

    def clear_statistics(self, unless=False):
        """Resets the statistics of members, unless a bool is True."""
        for statistic in (self.member_counts, self.member_sums, self.member_batches):
            statistic.assign(tf.where(unless, statistic, tf.zeros_like(statistic)))

    def nearest(self, vectors):
        """Returns the nearest centroid of each vector, int `[batch, heads, length]`.

        Args:
            vectors: normalized vectors `[batch, heads, length, depth]`.
        """
        return nearest_centroid(vectors, tf.convert_to_tensor(self.centroids), self.load_bias)

    def collect_statistics(self, *sources):
        """Adds the commitment loss and the statistics of a training step; moves no centroid.

        Args:
            *sources: pairs of vectors `[batch, heads, length, depth]`, before normalization, and
                their mask, bool `[batch, length]` or None: the queries and, if they are clustered
                separately, the keys.
        """
        members = [self._members(*source) for source in sources]
        centroids = tf.convert_to_tensor(self.centroids)
        distances = [
            commitment(vectors, clusters, centroids, mask) for vectors, clusters, mask in members
        ]
        loss = self.commitment_loss(tf.add_n(distances))
        # Keras can only sum losses of the same dtype.
        self.add_loss(tf.cast(loss, keras.config.floatx()))
        if self.trainable:
            self._warn_once()
            self._collect(members)

    def _members(self, vectors, mask):
        """Returns normalized vectors, their clusters and their mask, by centroid head."""
        heads = self.centroids.shape[0]
        shared_by = vectors.shape[1] // heads
        if shared_by > 1:
            # Queries of heads with the same centroids: [batch, heads, shared_by * length, depth]
            vectors = fold_heads(vectors, heads)
            mask = None if mask is None else tf.tile(mask, [1, shared_by])
        # Each head with separate centroids counts the keys that it shares with others.
        vectors = normalize(repeat_heads(vectors, heads))
        return vectors, self.nearest(vectors), mask

    def _collect(self, members):
        """Adds the (vectors, clusters, mask) of queries and keys to the statistics.

        Those of a batch that overflowed are left out.
        """
        sums, counts = map(tf.stack, zip(*(self.statistics(*source) for source in members)))
        queries, _, mask = members[0]
        samples = tf.convert_to_tensor(self.member_samples)
        sample = tf.cast(self._sample(queries, mask), samples.dtype)
        is_finite = tf.math.is_finite(tf.cast(tf.reduce_sum(sums), samples.dtype))
        is_finite &= tf.math.is_finite(tf.reduce_sum(sample))
        self.member_sums.assign_add(tf.where(is_finite, sums, tf.zeros_like(sums)))
        self.member_counts.assign_add(tf.where(is_finite, counts, tf.zeros_like(counts)))
        first = _is_first_replica(samples.dtype)
        self.member_batches.assign_add(first * tf.cast(is_finite, samples.dtype))
        self.member_samples.assign(tf.where(is_finite, first * sample, samples))

    def count_as_one_batch(self, parts):
        """Counts the last batches, which are `parts` of one batch, as one."""
        if self.trainable:
            one = _is_first_replica(self.member_batches.dtype)
            self.member_batches.assign_add((1 - parts) * one)

    def statistics(self, vectors, clusters, mask):
        """Returns sums and counts of the members of each cluster; see `ops.cluster_statistics`."""
        return cluster_statistics(vectors, clusters, self.num_clusters, mask)

    def commitment_loss(self, distance):
        """Returns the loss, given the mean squared distance of vectors to their centroids."""
        return self.commitment_weight * distance

    def _warn_once(self):
        if not self.has_updates:
            self.has_updates = True
            warnings.warn(
                f"The layer {self.path} is trained, but nothing updates its centroids. Add "
                "rt_keras.callbacks.CentroidEMA() to the callbacks of fit(). In a custom training "
                "loop, call its set_model(model) before the first batch and its "
                "update_centroids() after each batch.",
                stacklevel=2,
            )

    def _sample(self, vectors, mask):
        """Returns vectors at random positions without padding, one for each cluster."""
        batch, heads, length, depth = sizes(vectors)
        noise = keras.random.uniform([batch * length], seed=self.seed_generator)
        if mask is not None:
            noise += tf.reshape(tf.cast(mask, noise.dtype), [-1])
        # An empty batch is padded to one position of zeros.
        count = batch * length
        missing = larger(1 - count, 0)
        positions = pad_axis(tf.math.top_k(noise, count).indices, 0, 0, missing)
        if mask is not None:
            count = tf.reduce_sum(tf.cast(mask, tf.int32))
        # If there are fewer positions than clusters, some are used several times.
        positions = tf.gather(positions, tf.range(self.num_clusters) % tf.maximum(count, 1))
        # [heads, batch * length, depth]
        by_position = tf.reshape(move_axis(vectors, 1, 0), [heads, batch * length, depth])
        by_position = pad_axis(by_position, 1, 0, missing)
        return tf.stop_gradient(tf.gather(by_position, positions, axis=1))


def centroids_inside(layer):
    """Returns the `Centroids` inside a layer or model, in the order of its layers."""
    return layers_inside(layer, Centroids)


def _is_first_replica(dtype):
    """Returns 1 on the first replica, whose batches and samples count, and 0 on the others."""
    return tf.cast(tf.equal(replica_number(), 0), dtype)
