"""Hashed heads as in the authors' code."""

import keras

from rt_keras.layers.hashed_heads import HashedHeads
from rt_keras.layers.head_options import positive_int
from rt_keras.ops.hashed import bucket_members
from rt_keras.t2t.cluster_heads import ClusterHeads
from rt_keras.t2t.token_bias import TokenBias


@keras.saving.register_keras_serializable(package="rt_keras")
class T2THashedHeads(ClusterHeads, HashedHeads, TokenBias):
    """Hashed heads as in the authors' code, causal by rank in the bucket.

    For new models use `rt_keras.layers.HashedHeads`.

    Args:
        num_heads: int, number of heads in the group.
        num_buckets: int, number of buckets per head.
        window_size: int, number of members of a bucket that attend.
        block_size: int, sequences are padded to a multiple of this size, which is that of
            the local heads in the same layer.
        **kwargs: `token_bias` of `TokenBias`; `share_qk`, `max_relative_distance` and `seed` of
            `HashedHeads`; and base layer keyword arguments.

    Source: the code of Roy et al. 2021.

    >>> heads = T2THashedHeads(2, num_buckets=4, window_size=4, block_size=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x).shape
    TensorShape([1, 2, 10, 8])
    """

    members_by = "projections"
    count_by = "num_buckets"

    def __init__(self, num_heads, num_buckets, window_size, block_size, **kwargs):
        super().__init__(num_heads, num_buckets, window_size, **kwargs)
        self.block_size = positive_int("block_size", block_size)

    def pick_members(self, *arguments):
        return bucket_members(self.num_buckets, *arguments)
