"""Base class of heads with centroids, which learn by online k-means."""

import keras

from rt_keras.layers.centroids import Centroids
from rt_keras.layers.head_group import HeadGroup
from rt_keras.layers.head_options import positive_int


class CentroidHeads(Centroids, HeadGroup):
    """Base class of heads with centroids, found by online k-means.

    Subclasses define the attention of clusters. Centroids are not trained by gradient. In training,
    the layer accumulates the sum and the number of the queries and keys nearest to each centroid.
    After each batch, `rt_keras.callbacks.CentroidEMA` uses these statistics to update the centroids
    and the load bias, and resets them. The commitment loss, `commitment_weight * mean ‖x -
    centroid_μ(x)‖²` for queries and keys each, is added to the model's loss. With
    `trainable=False`, the layer collects no statistics and its centroids are not updated.

    With grouped-query attention (see `HeadGroup`), heads that share keys also share centroids,
    which learn from the queries of all these heads. In kinds that rank all positions, such as
    `RoutingHeads` with assignment "balanced", each head has separate centroids.

    Args:
        num_heads: int, number of heads in the group.
        num_clusters: int, number of centroids per head.
        window_size: int, maximum number of members of its cluster that a query attends to.
        share_qk: bool, whether queries are also keys. Defaults to False.
        max_relative_distance: int or None, largest distance of the relative positions. None
            disables them. Defaults to None.
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
    None of them is trainable.

    Raises:
        ValueError: if a number is out of range.

    Source: Roy et al. 2021, section 4.1.

    >>> from rt_keras.ops import balanced_attention
    >>> class Balanced(CentroidHeads):
    ...     attention_op = staticmethod(balanced_attention)
    ...     op_arguments = ("centroids", "window_size")
    >>> heads = Balanced(2, num_clusters=2, window_size=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x).shape
    TensorShape([1, 2, 10, 8])
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
