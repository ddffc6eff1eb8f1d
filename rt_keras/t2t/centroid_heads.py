"""Base class of this dialect's heads with centroids."""

import tensorflow as tf

from rt_keras.layers.centroid_heads import CentroidHeads
from rt_keras.layers.head_options import positive_int
from rt_keras.ops.routing import cluster_statistics
from rt_keras.t2t.cluster_heads import ClusterHeads
from rt_keras.t2t.token_bias import TokenBias


class T2TCentroidHeads(ClusterHeads, CentroidHeads, TokenBias):
    """Base class of heads with centroids as in the authors' code; see `CentroidHeads`.

    A subclass sets `pick_members`, an op that selects the members of each cluster.

    Args:
        num_heads: int, number of heads in the group.
        num_clusters: int, number of centroids per head.
        window_size: int, number of members of a cluster.
        block_size: int, sequences are padded to a multiple of this size.
        **kwargs: `token_bias` of `TokenBias`; `share_qk`, `max_relative_distance`,
            `commitment_weight` and `seed` of `CentroidHeads`; and base layer keyword arguments.
    """

    members_by = "centroids"

    def __init__(self, num_heads, num_clusters, window_size, block_size, **kwargs):
        super().__init__(num_heads, num_clusters, window_size, **kwargs)
        self.block_size = positive_int("block_size", block_size)

    def after_attention(self, *, query, **arguments):
        # Scaled before normalization, which matters because of its epsilon.
        super().after_attention(query=query * query.shape[-1] ** -0.5, **arguments)

    def statistics(self, vectors, clusters, mask):
        sums, _ = cluster_statistics(vectors, clusters, self.num_clusters, mask)
        return sums, mixed_counts(clusters, self.num_clusters, mask)

    def commitment_loss(self, distance, depth):
        # This is also a mean over the depth, and shared vectors count twice.
        return super().commitment_loss(distance, depth) * (2 if self.share_qk else 1) / depth


def mixed_counts(clusters, num_clusters, mask=None):
    """Counts the members of each cluster as in the authors' code, mixed over heads.

    That code treats its counts `[batch, heads, length, clusters]` as `[..., heads, clusters]`: head
    h gets the counts of all positions p of all heads with p ≡ h modulo the number of heads.

    Args:
        clusters: int `[batch, heads, length]`, the cluster of each vector.
        num_clusters: int, number of clusters.
        mask: bool `[batch, length]`, False for padding, or None.

    Returns:
        float32 `[heads, clusters]`.
    """
    members = tf.one_hot(clusters, num_clusters)
    if mask is not None:
        members *= tf.cast(mask, members.dtype)[:, None, :, None]
    return tf.reduce_sum(tf.reshape(members, [-1, clusters.shape[1], num_clusters]), axis=0)
