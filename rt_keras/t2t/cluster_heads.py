"""What this dialect's heads with clusters share."""

import tensorflow as tf

from rt_keras.layers.head_options import positive_int
from rt_keras.t2t.ops.clusters import cluster_attention
from rt_keras.t2t.relative_tables import RelativeTables


class ClusterHeads(RelativeTables):
    """A mixin of this dialect's head groups with clusters, before a group of `rt_keras.layers`.

    `TokenBias` is another base class of these.

    A subclass says by `pick_members`, a function of an op, how clusters pick their members, and by
    `members_by` which weight that function reads.

    Args:
        num_heads: int, heads in the group.
        num_clusters: int, clusters of each head.
        window_size: int, members of a cluster.
        block_size: int, size of the blocks to which sequences are filled up.
        **kwargs: keyword arguments of the group of `rt_keras.layers`.
    """

    def __init__(self, num_heads, num_clusters, window_size, block_size, **kwargs):
        super().__init__(num_heads, num_clusters, window_size, **kwargs)
        self.block_size = positive_int("block_size", block_size)

    def attend(self, *, causal, **arguments):
        return cluster_attention(
            self.pick_members,
            {self.members_by: tf.convert_to_tensor(getattr(self, self.members_by))},
            num_clusters=self.num_clusters,
            window_size=self.window_size,
            block_size=self.block_size,
            **self.tables(),
            causal=causal,
            token_bias=self.bias_of_keys(causal),
            **arguments,
        )
