"""Routing heads as the paper authors' code has them."""

import keras

from rt_keras.ops.balanced import nearest_members
from rt_keras.t2t.centroid_heads import T2TCentroidHeads


@keras.saving.register_keras_serializable(package="rt_keras")
class T2TRoutingHeads(T2TCentroidHeads):
    """Routing heads as the paper authors' code has them, balanced and causal by rank.

    Their plain counterpart is `rt_keras.layers.RoutingHeads` with assignment "balanced". With
    separate queries and keys, a causal query can see later positions.

    Args:
        num_heads: int, heads in the group.
        num_clusters: int, centroids of each head.
        window_size: int, members of a cluster.
        block_size: int, size of the blocks to which sequences are filled up: that of the local
            heads beside.
        **kwargs: `token_bias` of `TokenBias`; `share_qk`, `max_relative_distance`,
            `commitment_weight` and `seed` of `CentroidHeads`; and base layer keyword arguments.

    Source: the code of Roy et al. 2021.

    >>> heads = T2TRoutingHeads(2, num_clusters=2, window_size=4, block_size=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    pick_members = staticmethod(nearest_members)
