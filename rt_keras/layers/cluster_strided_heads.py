"""Heads whose clusters contain keys at all distances from their centroid."""

import keras

from rt_keras.layers.centroid_heads import CentroidHeads
from rt_keras.ops.cluster_strided import cluster_strided_attention


@keras.saving.register_keras_serializable(package="rt_keras")
class ClusterStridedHeads(CentroidHeads):
    """Heads whose clusters select members at even steps from the nearest to the furthest.

    See `rt_keras.ops.cluster_strided_attention` for the equation. See
    `rt_keras.layers.CentroidHeads` for how centroids learn and for the weights of the layer. The
    routing depends on later positions, and so do the outputs even if attention is causal.

    Args:
        num_heads: int, number of heads in the group.
        num_clusters: int, number of centroids per head.
        window_size: int, number of members of a cluster.
        share_qk: bool, whether queries are also keys. Defaults to False.
        max_relative_distance: int or None, largest distance of the relative positions. None
            disables them. Defaults to None.
        commitment_weight: float β, weight of the commitment loss. Defaults to 1e-4.
        seed: int or None, seed of the initial centroids, which are normalized Gaussian noise, and
            of the choice of members for restarts. Defaults to None.
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
