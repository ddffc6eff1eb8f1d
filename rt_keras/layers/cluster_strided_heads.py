"""Heads that see keys at all distances from a centroid."""

import keras

from rt_keras.layers.centroid_heads import CentroidHeads
from rt_keras.ops.cluster_strided import cluster_strided_attention


@keras.saving.register_keras_serializable(package="rt_keras")
class ClusterStridedHeads(CentroidHeads):
    """Heads whose clusters take members at even steps from the nearest to the furthest.

    See `rt_keras.ops.cluster_strided_attention` for the equation, and
    `rt_keras.layers.CentroidHeads` for how centroids learn and for the layer's weights. An output
    depends on later positions through the routing, even if attention is causal.

    Args:
        num_heads: int, heads in the group.
        num_clusters: int, centroids of each head.
        window_size: int, members of a cluster.
        share_qk: bool, whether queries are their own keys. Defaults to False.
        max_relative_distance: int, reach of the relative positions; None, the default, for none.
        commitment_weight: float β, weight of the commitment loss. Defaults to 1e-4.
        seed: int or None, seed of the initial centroids, normalised Gaussian noise, and of the
            choice of members kept for restarts.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Raises:
        ValueError: if a number is out of range.

    Source: the code of Roy et al. 2021.

    >>> heads = ClusterStridedHeads(2, num_clusters=2, window_size=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x).shape
    TensorShape([1, 2, 10, 8])
    """

    attention_op = staticmethod(cluster_strided_attention)
    op_arguments = ("centroids", "window_size")
