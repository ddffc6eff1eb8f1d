"""Base class of heads with centroids, which learn by online k-means."""

from rt_keras.layers.centroids import Centroids
from rt_keras.layers.head_group import HeadGroup
from rt_keras.layers.head_options import positive_int
from rt_keras.layers.relative_positions import make_relative_positions


class CentroidHeads(HeadGroup):
    """Base class of heads with centroids, found by online k-means.

    Subclasses define the attention of clusters. `centroids`, a
    `rt_keras.layers.centroids.Centroids`, describes how centroids learn.

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

    Raises:
        ValueError: if a number is out of range.

    Source: Roy et al. 2021, section 4.1.

    >>> import keras
    >>> from rt_keras.ops import balanced_attention
    >>> class Balanced(CentroidHeads):
    ...     def attend(self, inputs, return_logsumexp=False):
    ...         vectors = inputs.query, inputs.key, inputs.value
    ...         options = inputs.sequence_options(shared=True)
    ...         centroids = self.centroids.centroids
    ...         return balanced_attention(
    ...             *vectors, centroids, window_size=self.window_size, **options
    ...         )
    >>> heads = Balanced(2, num_clusters=2, window_size=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x).shape
    TensorShape([1, 2, 10, 8])
    """

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
        super().__init__(num_heads, **kwargs)
        self.num_clusters = num_clusters
        self.window_size = positive_int("window_size", window_size)
        self.share_qk = bool(share_qk)
        self.max_relative_distance = max_relative_distance
        self.commitment_weight = commitment_weight
        self.seed = seed
        self.positions = make_relative_positions(max_relative_distance, dtype=self.dtype_policy)
        self.centroids = Centroids(
            num_clusters, commitment_weight, seed, dtype=self.dtype_policy, name="centroids"
        )

    def build(self, query_shape, value_shape=None, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        if self.positions is not None:
            self.positions.build(query_shape)
        self.centroids.build(query_shape, sources=1 if self.share_qk else 2)

    def get_config(self):
        return {
            **super().get_config(),
            "num_clusters": self.num_clusters,
            "window_size": self.window_size,
            "share_qk": self.share_qk,
            "max_relative_distance": self.max_relative_distance,
            "commitment_weight": self.commitment_weight,
            "seed": self.seed,
        }
