"""Heads that see keys at all distances from a centroid."""

import keras

from rt_keras.layers.routing_heads import RoutingHeads
from rt_keras.ops.cluster_strided import cluster_strided_attention


@keras.saving.register_keras_serializable(package="rt_keras")
class ClusterStridedHeads(RoutingHeads):
    """Routing heads whose clusters take members at even steps from the nearest to the furthest.

    See `rt_keras.ops.cluster_strided_attention`. Centroids, statistics and commitment loss are
    those of `RoutingHeads`. As with its assignment "balanced", an output depends on later
    positions through the routing, even where attention is causal.

    Args:
        num_heads: heads in the group.
        num_clusters: centroids of each head.
        window_size: members of a cluster.
        **kwargs: `max_relative_distance`, `commitment_weight`, `token_bias`,
            `reference_block_size`, `seed`: as those of `RoutingHeads`; and those of
            `keras.layers.Layer`.

    Source: the code of Roy et al. 2021.

    >>> heads = ClusterStridedHeads(2, num_clusters=2, window_size=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x).shape
    TensorShape([1, 2, 10, 8])
    """

    balanced_op = staticmethod(cluster_strided_attention)

    def __init__(self, num_heads, num_clusters, window_size, **kwargs):
        super().__init__(num_heads, num_clusters, window_size, assignment="balanced", **kwargs)

    def get_config(self):
        config = super().get_config()
        for name in ("assignment", "share_qk", "num_probes"):
            del config[name]
        return config
