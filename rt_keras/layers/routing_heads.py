"""Heads that see the keys of their own cluster."""

import warnings

import keras
import tensorflow as tf

from rt_keras.layers.head_group import HeadGroup, positive_int
from rt_keras.ops.balanced import balanced_attention
from rt_keras.ops.nearest import nearest_attention
from rt_keras.ops.nearest_decode import nearest_cache, nearest_step
from rt_keras.ops.routing import cluster_statistics, commitment, nearest_centroid, normalize

ASSIGNMENTS = ("balanced", "nearest")


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingHeads(HeadGroup):
    """Heads whose queries see keys of their own cluster, found by online k-means.

    Queries and keys are layer-normalised over the depth and routed by their scores
    `centroid_c · x`. See `rt_keras.ops.nearest_attention` and `rt_keras.ops.balanced_attention`
    for the equations of the two assignments: with "nearest" output i depends on positions up to i
    alone; with "balanced" (the paper's) it depends on later positions too, through the routing,
    even where attention is causal.

    Centroids are not trained by gradient. In training the layer adds up, for each centroid, the
    sum and the number of the queries and keys nearest to it; `rt_keras.callbacks.CentroidEMA` moves
    the centroids by them after each batch, moves the load bias, and clears them. The commitment
    loss, `commitment_weight * mean ‖x - centroid_μ(x)‖²`, for queries and keys each, is added to
    the model's loss.

    Args:
        num_heads: heads in the group.
        num_clusters: centroids of each head. About sqrt(n) of them cost least.
        window_size: how many members of its cluster a query attends among.
        assignment: "nearest" or "balanced", how positions join clusters.
        share_qk: whether queries are their own keys, as the paper has it for causal attention.
            Separate ones cost twice as much with "nearest", and learn recall far better.
        num_probes: with "nearest", in how many of its nearest clusters a query attends.
        max_relative_distance: reach of the relative positions, or None for none; see `HeadGroup`.
        commitment_weight: β, weight of the commitment loss.
        token_bias: None, "fixed" or "trainable"; see `HeadGroup`.
        reference_block_size: with "balanced", None; or, for checkpoints of the code of the paper's
            authors alone, the block size of the local heads beside. The group then computes what
            that code does, which masks by rank in the cluster, not by position, and differs in
            more; see `rt_keras.ops.balanced_attention`.
        seed: of the initial centroids, normalised Gaussian noise, and of the choice of members
            kept for restarts.
        **kwargs: those of `keras.layers.Layer`.

    Weights:
        centroids: `[heads, clusters, depth]`.
        load_bias: `[heads, clusters]`, added to the scores where a nearest centroid is chosen.
        average_counts, average_sums: `[heads, clusters]` and `[heads, clusters, depth]`, moving
            averages that the update "count" keeps.
        member_counts, member_sums: `[sources, heads, clusters]` and the same by depth, statistics
            since the last update, over all replicas; the sources are queries and, where they are
            separate, keys.
        member_batches: scalar, how many batches they come from.
        member_samples: `[heads, clusters, depth]`, random queries of the last batch, for centroids
            that start from members.
        updates: scalar, how often the centroids were moved.
    None of them is trainable.

    Raises:
        ValueError: if a number is out of range, or `num_probes` is above 1 with "balanced".

    Source: Roy et al. 2021, section 4.1.

    >>> heads = RoutingHeads(2, num_clusters=4, window_size=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    # The op of assignment "balanced".
    balanced_op = staticmethod(balanced_attention)

    def __init__(
        self,
        num_heads,
        num_clusters,
        window_size,
        assignment="nearest",
        share_qk=False,
        num_probes=1,
        max_relative_distance=None,
        commitment_weight=1e-4,
        token_bias=None,
        reference_block_size=None,
        seed=None,
        **kwargs,
    ):
        super().__init__(num_heads, max_relative_distance, token_bias, **kwargs)
        self.num_clusters = positive_int("num_clusters", num_clusters)
        self.window_size = positive_int("window_size", window_size)
        if assignment not in ASSIGNMENTS:
            raise ValueError(
                f"assignment must be one of {ASSIGNMENTS}. Received: assignment={assignment!r}"
            )
        self.assignment = assignment
        self.share_qk = bool(share_qk)
        self.num_probes = positive_int("num_probes", num_probes)
        if num_probes > (num_clusters if assignment == "nearest" else 1):
            raise ValueError(
                "num_probes must be at most num_clusters with assignment 'nearest', and 1 with "
                f"'balanced'. Received: num_probes={num_probes}, num_clusters={num_clusters}, "
                f"assignment={assignment!r}"
            )
        if commitment_weight < 0:
            raise ValueError(f"commitment_weight must be at least 0. Received: {commitment_weight}")
        self.commitment_weight = commitment_weight
        if reference_block_size is not None:
            positive_int("reference_block_size", reference_block_size)
            if assignment != "balanced":
                raise ValueError(
                    "reference_block_size goes with assignment 'balanced'. Received: "
                    f"assignment={assignment!r}"
                )
        self.reference_block_size = reference_block_size
        self.reference = reference_block_size is not None
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)
        # Set by CentroidEMA. Without it the centroids would stay where they started.
        self.has_centroid_updates = False

    def build(self, query_shape, value_shape=None, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        heads, clusters, depth = self.num_heads, self.num_clusters, query_shape[-1]
        sources = 1 if self.share_qk else 2

        def state(name, *shape, initializer="zeros", aggregation="none"):
            return self.add_weight(
                name=name,
                shape=shape,
                initializer=initializer,
                dtype=self.state_dtype,
                trainable=False,
                autocast=False,
                aggregation=aggregation,
            )

        self.centroids = state("centroids", heads, clusters, depth, initializer=self._unit_noise)
        self.load_bias = state("load_bias", heads, clusters)
        self.average_counts = state("average_counts", heads, clusters)
        self.average_sums = state("average_sums", heads, clusters, depth)
        self.member_counts = state("member_counts", sources, heads, clusters, aggregation="sum")
        self.member_sums = state("member_sums", sources, heads, clusters, depth, aggregation="sum")
        one_replica = {"aggregation": "only_first_replica"}
        self.member_batches = state("member_batches", **one_replica)
        self.member_samples = state("member_samples", heads, clusters, depth, **one_replica)
        self.updates = state("updates")

    def _unit_noise(self, shape, dtype=None):
        noise = keras.random.normal(shape, dtype=dtype, seed=self.seed_generator)
        return keras.ops.normalize(noise, axis=-1)

    def call(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        key_mask=None,
        attention_mask=None,
        token_bias=None,
        use_causal_mask=False,
        dropout=0.0,
        seed=None,
        training=None,
    ):
        if self.share_qk and len({query.shape[2], value.shape[2]} - {None}) > 1:
            raise ValueError(
                "RoutingHeads with share_qk=True need as many values as queries, which are their "
                f"own keys. Received: query of length {query.shape[2]}, value of length "
                f"{value.shape[2]}."
            )
        if self.share_qk and key_mask is not None:
            # One list of vectors has one mask, and the op takes None for the same again.
            query_mask = key_mask if query_mask is None else tf.logical_and(query_mask, key_mask)
            key_mask = None
        output = super().call(
            query,
            value,
            key,
            query_mask=query_mask,
            key_mask=key_mask,
            attention_mask=attention_mask,
            token_bias=token_bias,
            use_causal_mask=use_causal_mask,
            dropout=dropout,
            seed=seed,
            training=training,
        )
        if training:
            self._warn_once()
            self._collect(query, key, query_mask, key_mask)
        return output

    def attend(self, query, key, value, options):
        centroids = tf.convert_to_tensor(self.centroids)
        if self.assignment == "balanced":
            return self.balanced_op(
                query,
                key,
                value,
                centroids,
                window_size=self.window_size,
                reference_block_size=self.reference_block_size,
                **options,
            )
        return nearest_attention(
            query,
            key,
            value,
            centroids,
            window_size=self.window_size,
            num_probes=self.num_probes,
            load_bias=tf.convert_to_tensor(self.load_bias),
            **options,
        )

    @property
    def cached_decoding(self):
        """Whether the assignment is "nearest": with "balanced", members depend on what follows."""
        return self.assignment == "nearest"

    def fill_cache(self, key, value, count, max_length, options):
        return nearest_cache(
            key,
            value,
            tf.convert_to_tensor(self.centroids),
            count,
            window_size=self.window_size,
            load_bias=tf.convert_to_tensor(self.load_bias),
            max_length=max_length,
            keep_positions=self.relative_embeddings is not None,
            **options,
        )

    def step(self, query, key, value, cache, position, options):
        return nearest_step(
            query,
            key,
            value,
            cache,
            position,
            tf.convert_to_tensor(self.centroids),
            num_probes=self.num_probes,
            load_bias=tf.convert_to_tensor(self.load_bias),
            **options,
        )

    def _described(self):
        return f"{type(self).__name__} of assignment {self.assignment!r}"

    def _warn_once(self):
        if not self.has_centroid_updates:
            self.has_centroid_updates = True
            warnings.warn(
                f"The layer {self.path} is trained, but nothing moves its centroids. Add "
                "rt_keras.callbacks.CentroidEMA() to the callbacks of fit().",
                stacklevel=2,
            )

    def _collect(self, query, key, query_mask, key_mask):
        """Adds this batch to the statistics, and the commitment loss to the model's."""
        centroids = tf.convert_to_tensor(self.centroids)
        mixed = self.reference_block_size is not None
        if mixed:
            # As that code does before it normalises, which matters to the ε in it.
            query = query * query.shape[-1] ** -0.5
        sources = [(query, query_mask)] if self.share_qk else [(query, query_mask), (key, key_mask)]
        sums, counts, losses = [], [], []
        for vectors, mask in sources:
            vectors = normalize(vectors)
            clusters = nearest_centroid(vectors, centroids, self.load_bias)
            found = cluster_statistics(vectors, clusters, self.num_clusters, mask)
            sums.append(found[0])
            counts.append(_mixed_counts(clusters, self.num_clusters, mask) if mixed else found[1])
            losses.append(commitment(vectors, clusters, centroids, mask))
        _add(self.member_sums, tf.stack(sums))
        _add(self.member_counts, tf.stack(counts))
        _add(self.member_batches, 1.0)
        self.member_samples.assign(self._sample(normalize(query), query_mask))
        weight = self.commitment_weight
        if mixed:
            # That code takes the mean over the depth too, and counts shared vectors twice.
            weight *= (2 if self.share_qk else 1) / query.shape[-1]
        self.add_loss(weight * tf.add_n(losses))

    def _sample(self, vectors, mask):
        """Vectors at random positions of the batch, one for each cluster, without padding."""
        shape = tf.shape(vectors)
        noise = keras.random.uniform([shape[0] * shape[2]], seed=self.seed_generator)
        if mask is not None:
            noise += tf.reshape(tf.cast(mask, noise.dtype), [-1])
        positions = tf.argsort(noise, direction="DESCENDING")
        found = tf.size(noise) if mask is None else tf.reduce_sum(tf.cast(mask, tf.int32))
        # Where there are fewer than clusters, some serve several.
        positions = tf.gather(positions, tf.range(self.num_clusters) % tf.maximum(found, 1))
        by_position = tf.reshape(
            tf.transpose(vectors, [1, 0, 2, 3]), [self.num_heads, -1, shape[3]]
        )
        return tf.stop_gradient(tf.gather(by_position, positions, axis=1))

    def get_config(self):
        return {
            **super().get_config(),
            "num_clusters": self.num_clusters,
            "window_size": self.window_size,
            "assignment": self.assignment,
            "share_qk": self.share_qk,
            "num_probes": self.num_probes,
            "commitment_weight": self.commitment_weight,
            "reference_block_size": self.reference_block_size,
            "seed": self.seed,
        }


def _add(variable, amount):
    """Adds to a variable, over replicas as it says itself."""
    if isinstance(variable.value, tf.Variable):
        # assign_add of the tf.Variable sums over replicas, where Keras's own would not.
        variable.value.assign_add(amount)
    else:
        # In a keras.StatelessScope.
        variable.assign(variable.value + amount)


def _mixed_counts(clusters, num_clusters, mask):
    """Members of each cluster as the code of the paper's authors counts them, over all heads.

    That code takes its counts, `[batch, heads, length, clusters]`, for `[..., heads, clusters]`:
    head h gets those of every position p of all heads with p ≡ h, modulo the number of heads.
    """
    members = tf.one_hot(clusters, num_clusters)
    if mask is not None:
        members *= tf.cast(mask, members.dtype)[:, None, :, None]
    return tf.reduce_sum(tf.reshape(members, [-1, clusters.shape[1], num_clusters]), axis=0)
