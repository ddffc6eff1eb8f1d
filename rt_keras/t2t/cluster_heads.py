"""Mixin of this dialect's heads with clusters."""

import tensorflow as tf

from rt_keras.t2t.ops.clusters import cluster_attention
from rt_keras.t2t.relative_tables import RelativeTables


class ClusterHeads(RelativeTables):
    """Mixin of this dialect's clustered head groups.

    It precedes a group of `rt_keras.layers` in the list of base classes, and `TokenBias` follows
    that group. A subclass sets `pick_members`, an op that selects the members of each cluster;
    `members_by`, the name of the weight that the op reads; and `block_size`, an int: sequences are
    padded to a multiple of it.
    """

    # The name of the attribute with the number of clusters.
    count_by = "num_clusters"

    def attend(self, *, causal, **arguments):
        return cluster_attention(
            self.pick_members,
            {self.members_by: tf.convert_to_tensor(getattr(self, self.members_by))},
            num_clusters=getattr(self, self.count_by),
            window_size=self.window_size,
            block_size=self.block_size,
            **self.tables(),
            causal=causal,
            token_bias=self.bias_of_keys(causal),
            **arguments,
        )
