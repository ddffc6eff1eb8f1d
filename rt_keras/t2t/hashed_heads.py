"""Hashed heads as the paper authors' code has them."""

import functools

import keras
import tensorflow as tf

from rt_keras.layers.hashed_heads import HashedHeads
from rt_keras.layers.head_group import positive_int
from rt_keras.ops.hashed import bucket_members
from rt_keras.t2t.ops.clusters import cluster_attention
from rt_keras.t2t.relative_tables import RelativeTables


@keras.saving.register_keras_serializable(package="rt_keras")
class T2THashedHeads(RelativeTables, HashedHeads):
    """Hashed heads as the paper authors' code has them, causal by rank in the bucket.

    Their plain counterpart is `rt_keras.layers.HashedHeads`.

    Args:
        num_heads: int, heads in the group.
        num_clusters: int, buckets of each head.
        window_size: int, members of a bucket that attend.
        block_size: int, size of the blocks to which sequences are filled up: that of the local
            heads beside.
        **kwargs: `share_qk`, `max_relative_distance`, `token_bias` and `seed` of `HashedHeads`,
            and base layer keyword arguments.

    Source: the code of Roy et al. 2021.

    >>> heads = T2THashedHeads(2, num_clusters=4, window_size=4, block_size=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x).shape
    TensorShape([1, 2, 10, 8])
    """

    def __init__(self, num_heads, num_clusters, window_size, block_size, **kwargs):
        super().__init__(num_heads, num_clusters, window_size, **kwargs)
        self.block_size = positive_int("block_size", block_size)

    def attend(self, **arguments):
        return cluster_attention(
            functools.partial(bucket_members, self.num_clusters),
            {"projections": tf.convert_to_tensor(self.projections)},
            num_clusters=self.num_clusters,
            window_size=self.window_size,
            block_size=self.block_size,
            **arguments,
        )

    def get_config(self):
        return {**super().get_config(), "block_size": self.block_size}
