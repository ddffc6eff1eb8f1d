"""Routing heads as in the authors' code."""

import keras

from rt_keras.ops.balanced import nearest_members
from rt_keras.t2t.centroid_heads import T2TCentroidHeads


@keras.saving.register_keras_serializable(package="rt_keras")
class T2TRoutingHeads(T2TCentroidHeads):
    """Routing heads as in the authors' code, balanced and causal by rank.

    For new models use `rt_keras.layers.RoutingHeads` with `assignment="balanced"`. With separate
    queries and keys, a causal query can see later positions.

    Args:
        num_heads: int, number of heads in the group.
        num_clusters: int, number of centroids per head.
        window_size: int, number of members of a cluster.
        block_size: int, sequences are padded to a multiple of this size, which is that of
            the local heads in the same layer.
        **kwargs: `token_bias` of `TokenBias`; `share_qk`, `max_relative_distance`,
            `commitment_weight` and `seed` of `CentroidHeads`; and base layer keyword arguments.

    Source: the code of Roy et al. 2021.

    >>> heads = T2TRoutingHeads(2, num_clusters=2, window_size=4, block_size=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    pick_members = staticmethod(nearest_members)
