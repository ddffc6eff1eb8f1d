"""The base class of heads with centroids, which learn by online k-means."""

import keras

from rt_keras.layers.centroids import Centroids
from rt_keras.layers.head_group import HeadGroup
from rt_keras.layers.head_options import positive_int


class CentroidHeads(Centroids, HeadGroup):
    """Heads with centroids, found by online k-means; subclasses say how clusters attend.

    Centroids are not trained by gradient. In training the layer adds up, for each centroid, the
    sum and the number of the queries and keys nearest to it; `rt_keras.callbacks.CentroidEMA` moves
    the centroids by them after each batch, moves the load bias, and clears them. The commitment
    loss, `commitment_weight * mean ‖x - centroid_μ(x)‖²`, for queries and keys each, is added to
    the model's loss. With `trainable=False` the layer collects nothing, and its centroids stay.

    With grouped queries (see `HeadGroup`), heads that share their keys share centroids too, which
    learn from the queries of all of them. The exception is kinds that rank all positions, such as
    `RoutingHeads` of assignment "balanced": there each head has its own.

    Args:
        num_heads: int, heads in the group.
        num_clusters: int, centroids of each head.
        window_size: int, how many members of its cluster a query attends among.
        share_qk: bool, whether queries are their own keys. Defaults to False.
        max_relative_distance: int, reach of the relative positions; None, the default, for none.
        commitment_weight: float β, weight of the commitment loss. Defaults to 1e-4.
        seed: int or None, seed of the initial centroids, normalised Gaussian noise, and of the
            choice of members kept for restarts.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Weights:
        centroids: `[heads, clusters, depth]`; the heads, here and below, are those of keys if these
            share centroids.
        load_bias: `[heads, clusters]`, added to the scores when a nearest centroid is chosen.
        average_counts, average_sums: `[heads, clusters]` and `[heads, clusters, depth]`, moving
            averages that the update "count" keeps.
        member_counts, member_sums: `[sources, heads, clusters]` and the same by depth, statistics
            since the last update, over all replicas; the sources are queries and, if separate,
            keys.
        member_batches: scalar, how many batches they come from.
        member_samples: `[heads, clusters, depth]`, random queries of the last batch, for centroids
            that start from members.
        updates: scalar, how often the centroids were moved.
        empty_batches: `[heads, clusters]`, for how many batches each cluster has been empty.
    None of them is trainable.

    Raises:
        ValueError: if a number is out of range.

    Source: Roy et al. 2021, section 4.1.
    """

    has_centroids = True

    def __init__(
        self,
        num_heads,
        num_clusters,
        window_size,
        share_qk=False,
        max_relative_distance=None,
        commitment_weight=1e-4,
        seed=None,
        **kwargs,
    ):
        super().__init__(num_heads, max_relative_distance, **kwargs)
        self.num_clusters = positive_int("num_clusters", num_clusters)
        self.window_size = positive_int("window_size", window_size)
        self.share_qk = bool(share_qk)
        if commitment_weight < 0:
            raise ValueError(f"commitment_weight must be at least 0. Received: {commitment_weight}")
        self.commitment_weight = commitment_weight
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)

    def build(self, query_shape, value_shape=None, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        self.build_centroids(query_shape[-1])

    def after_attention(self, *, value, **arguments):
        self.learn(**arguments)
