"""The base class of this dialect's heads with centroids."""

import tensorflow as tf

from rt_keras.layers.centroid_heads import CentroidHeads
from rt_keras.ops.routing import cluster_statistics
from rt_keras.t2t.cluster_heads import ClusterHeads
from rt_keras.t2t.token_bias import TokenBias


class T2TCentroidHeads(ClusterHeads, CentroidHeads, TokenBias):
    """Heads with centroids as the paper authors' code has them; see `CentroidHeads`.

    A subclass says by `pick_members`, a function of an op, how clusters pick their members.

    Args:
        num_heads: int, heads in the group.
        num_clusters: int, centroids of each head.
        window_size: int, members of a cluster.
        block_size: int, size of the blocks to which sequences are filled up.
        **kwargs: `token_bias` of `TokenBias`; `share_qk`, `max_relative_distance`,
            `commitment_weight` and `seed` of `CentroidHeads`; and base layer keyword arguments.
    """

    members_by = "centroids"

    def after_attention(self, *, query, **arguments):
        # Scaled before it is normalised, which matters to the ε in the normalisation.
        super().after_attention(query=query * query.shape[-1] ** -0.5, **arguments)

    def statistics(self, vectors, clusters, mask):
        sums, _ = cluster_statistics(vectors, clusters, self.num_clusters, mask)
        return sums, mixed_counts(clusters, self.num_clusters, mask)

    def commitment_loss(self, distance, depth):
        # A mean over the depth too, and shared vectors are counted twice.
        return super().commitment_loss(distance, depth) * (2 if self.share_qk else 1) / depth


def mixed_counts(clusters, num_clusters, mask=None):
    """Members of each cluster as the paper authors' code counts them, mixed over heads.

    That code takes its counts, `[batch, heads, length, clusters]`, for `[..., heads, clusters]`:
    head h gets those of every position p of all heads with p ≡ h, modulo the number of heads.

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
