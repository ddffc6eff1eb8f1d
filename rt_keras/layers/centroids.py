"""Centroids of head groups, which learn by online k-means."""

import warnings

import keras
import tensorflow as tf

from rt_keras.layers.dropout import replica_number
from rt_keras.layers.layers_inside import layers_inside
from rt_keras.ops.blocks import fold_heads, larger, move_axis, pad_axis, repeat_heads, sizes
from rt_keras.ops.nearest.assign import cluster_statistics, commitment, nearest_centroid, normalize


class Centroids:
    """Mixin of head groups with centroids; see `CentroidHeads` for how they learn.

    The head group has attributes `num_clusters`, `commitment_weight` and `seed_generator`. It calls
    `build_centroids` when it is built, and `learn` at the end of each training step.
    """

    # Set by CentroidEMA. Without it, the centroids would keep their initial values.
    has_centroid_updates = False

    def build_centroids(self, depth):
        """Adds the centroids, their load bias and their statistics.

        Args:
            depth: int, depth of queries and keys.
        """
        heads = self.num_key_value_heads if self.groups_queries else self.num_heads
        clusters = self.num_clusters
        sources = 1 if self.clusters_queries_alone else 2

        def state(name, *shape, initializer="zeros", **distribution):
            # add_weight does not support `synchronization`.
            return keras.Variable(
                initializer,
                shape=shape,
                dtype=self.state_dtype,
                trainable=False,
                autocast=False,
                name=name,
                **distribution,
            )

        self.centroids = state("centroids", heads, clusters, depth, initializer=self._unit_noise)
        self.load_bias = state("load_bias", heads, clusters)
        self.average_counts = state("average_counts", heads, clusters)
        self.average_sums = state("average_sums", heads, clusters, depth)
        # Each replica has separate statistics. Reading them returns their sum.
        summed = {"aggregation": "sum", "synchronization": "on_read"}
        self.member_counts = state("member_counts", sources, heads, clusters, **summed)
        self.member_sums = state("member_sums", sources, heads, clusters, depth, **summed)
        self.member_batches = state("member_batches", **summed)
        self.member_samples = state("member_samples", heads, clusters, depth, **summed)
        self.updates = state("updates")
        self.empty_batches = state("empty_batches", heads, clusters)

    @property
    def clusters_queries_alone(self):
        """Returns whether centroids learn only from queries, because these are also the keys."""
        return self.share_qk

    def _unit_noise(self, shape, dtype=None):
        noise = keras.random.normal(shape, dtype=dtype, seed=self.seed_generator)
        return keras.ops.normalize(noise, axis=-1)

    def before_attention(self, query, value, query_mask, key_mask):
        if not self.share_qk or key_mask is None:
            return {"query_mask": query_mask, "key_mask": key_mask}
        # Queries that are also keys have one mask.
        both = key_mask if query_mask is None else tf.logical_and(query_mask, key_mask)
        return {"query_mask": both, "key_mask": None}

    def clear_statistics(self, unless=False):
        """Resets the statistics of members, unless a bool is True."""
        for statistic in (self.member_counts, self.member_sums, self.member_batches):
            statistic.assign(tf.where(unless, statistic, tf.zeros_like(statistic)))

    def learn(self, *, query, **arguments):
        """Adds the commitment loss and the centroid statistics of a training step.

        Args:
            query: the query of the call.
            **arguments: the other arguments of `clustered_vectors`.
        """
        members = self._members(query=query, **arguments)
        centroids = tf.convert_to_tensor(self.centroids)
        losses = [
            commitment(vectors, clusters, centroids, mask) for vectors, clusters, mask in members
        ]
        loss = self.commitment_loss(tf.add_n(losses), query.shape[-1])
        # Keras can only sum losses of the same dtype.
        self.add_loss(tf.cast(loss, keras.config.floatx()))
        if self.trainable:
            self._warn_once()
            self._collect(members)

    def clustered_vectors(self, *, query, key, query_mask, key_mask, documents=None):
        """Returns the vectors that belong to clusters, before normalization.

        Args:
            query, key: the query and key of a call.
            query_mask, key_mask: bool `[batch, length]`, False for padding; or None.
            documents: int `[batch, length]`, documents in a row; or None. Defaults to None.

        Returns:
            A dictionary with "queries" and, if keys are clustered separately, "keys". The values
            are pairs of vectors `[batch, heads or key_heads, length, depth]` and their mask.
        """
        found = {"queries": (query, query_mask)}
        return found if self.clusters_queries_alone else {**found, "keys": (key, key_mask)}

    def _members(self, **arguments):
        """Returns a list of (vectors, clusters, mask) of queries and of keys."""
        sources = self.clustered_vectors(**arguments)
        sources["queries"] = self._by_key_head(*sources["queries"])
        centroids = tf.convert_to_tensor(self.centroids)
        members = []
        for vectors, mask in sources.values():
            # Each head with separate centroids counts the keys that it shares with others.
            vectors = normalize(repeat_heads(vectors, centroids.shape[0]))
            members.append((vectors, nearest_centroid(vectors, centroids, self.load_bias), mask))
        return members

    def _by_key_head(self, query, mask):
        """Returns the queries of all heads that share centroids as one list, and its mask."""
        heads = self.centroids.shape[0]
        if mask is not None:
            mask = tf.tile(mask, [1, self.num_heads // heads])
        return fold_heads(query, heads), mask

    def _collect(self, members):
        """Adds the (vectors, clusters, mask) of queries and keys to the statistics.

        Those of a batch that overflowed are left out.
        """
        sums, counts = map(tf.stack, zip(*(self.statistics(*source) for source in members)))
        queries, _, mask = members[0]
        old = tf.convert_to_tensor(self.member_samples)
        sample = tf.cast(self._sample(queries, mask), old.dtype)
        is_finite = tf.math.is_finite(tf.cast(tf.reduce_sum(sums), old.dtype))
        is_finite &= tf.math.is_finite(tf.reduce_sum(sample))
        self.member_sums.assign_add(tf.where(is_finite, sums, tf.zeros_like(sums)))
        self.member_counts.assign_add(tf.where(is_finite, counts, tf.zeros_like(counts)))
        first = _is_first_replica(old.dtype)
        self.member_batches.assign_add(first * tf.cast(is_finite, old.dtype))
        self.member_samples.assign(tf.where(is_finite, first * sample, old))

    def count_as_one_batch(self, parts):
        """Counts the last batches, which are parts of one batch, as one.

        Args:
            parts: int, number of these batches.
        """
        if self.trainable:
            one = _is_first_replica(self.member_batches.dtype)
            self.member_batches.assign_add((1 - parts) * one)

    def statistics(self, vectors, clusters, mask):
        """Returns sums and counts of the members of each cluster; see `ops.cluster_statistics`."""
        return cluster_statistics(vectors, clusters, self.num_clusters, mask)

    def commitment_loss(self, distance, depth):
        """Returns the loss, given the mean squared distance of vectors to their centroids."""
        return self.commitment_weight * distance

    def _warn_once(self):
        if not self.has_centroid_updates:
            self.has_centroid_updates = True
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
        found = batch * length
        missing = larger(1 - found, 0)
        positions = pad_axis(tf.math.top_k(noise, found).indices, 0, 0, missing)
        if mask is not None:
            found = tf.reduce_sum(tf.cast(mask, tf.int32))
        # If there are fewer positions than clusters, some are used several times.
        positions = tf.gather(positions, tf.range(self.num_clusters) % tf.maximum(found, 1))
        by_position = tf.reshape(move_axis(vectors, 1, 0), [heads, batch * length, depth])
        by_position = pad_axis(by_position, 1, 0, missing)
        return tf.stop_gradient(tf.gather(by_position, positions, axis=1))


def heads_with_centroids(layer):
    """Returns the head groups with centroids inside a layer, in the order of its layers.

    Args:
        layer: a layer or model.
    """
    return [heads for heads in layers_inside(layer, Centroids) if heads.has_centroids]


def _is_first_replica(dtype):
    """Returns 1 on the first replica, whose batches and samples count, and 0 on the others."""
    return tf.cast(tf.equal(replica_number(), 0), dtype)
