"""Hashed heads as the paper authors' code has them."""

import keras

from rt_keras.layers.hashed_heads import HashedHeads
from rt_keras.ops.hashed import bucket_members
from rt_keras.t2t.cluster_heads import ClusterHeads
from rt_keras.t2t.token_bias import TokenBias


@keras.saving.register_keras_serializable(package="rt_keras")
class T2THashedHeads(ClusterHeads, HashedHeads, TokenBias):
    """Hashed heads as the paper authors' code has them, causal by rank in the bucket.

    Their plain counterpart is `rt_keras.layers.HashedHeads`.

    Args:
        num_heads: int, heads in the group.
        num_clusters: int, buckets of each head.
        window_size: int, members of a bucket that attend.
        block_size: int, size of the blocks to which sequences are filled up: that of the local
            heads beside.
        **kwargs: `token_bias` of `TokenBias`; `share_qk`, `max_relative_distance` and `seed` of
            `HashedHeads`; and base layer keyword arguments.

    Source: the code of Roy et al. 2021.

    >>> heads = T2THashedHeads(2, num_clusters=4, window_size=4, block_size=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x).shape
    TensorShape([1, 2, 10, 8])
    """

    members_by = "projections"

    def pick_members(self, *arguments):
        return bucket_members(self.num_clusters, *arguments)
