"""The heads of the authors' code; `rt_keras.convert.t2t` lists what differs from other heads."""

import keras
import tensorflow as tf

from rt_keras.convert.t2t import clusters, local, strided
from rt_keras.convert.t2t.token_bias import TokenBias
from rt_keras.layers.centroid_heads import CentroidHeads
from rt_keras.layers.head_options import positive_int
from rt_keras.layers.heads import Heads
from rt_keras.layers.key_sets import Strided, Window
from rt_keras.ops.balanced import nearest_members
from rt_keras.ops.nearest.assign import cluster_statistics


class RelativeTables:
    """Mixin of head groups: relative positions from tables shared by all heads.

    One table is added to the keys, the other to the values.
    """

    relative_values = None

    @property
    def adds_to_values(self):
        return self.relative_values is not None or super().adds_to_values

    def add_relative_embeddings(self, max_relative_distance, depth):
        def table(name, depth):
            return self.add_weight(
                name=name,
                shape=(1, 2 * max_relative_distance + 1, depth),
                initializer=keras.initializers.VarianceScaling(0.2, "fan_avg", "uniform"),
            )

        self.relative_embeddings = table("relative_embeddings", depth)
        self.relative_values = table("relative_values", self.value_depth)

    def tables(self):
        tables = super().tables()
        if tables:
            tables["relative_values"] = keras.ops.convert_to_tensor(self.relative_values)
        return tables


@keras.saving.register_keras_serializable(package="rt_keras")
class T2TLocalHeads(RelativeTables, Heads, TokenBias):
    """Local heads as in the authors' code; see `rt_keras.layers.LocalHeads`.

    Relative distances assume that the block of queries is the last in its window, which is not true
    in several dimensions or without a causal mask. Padded queries are not masked, and the output of
    a query without keys is the mean of its window.

    Args:
        num_heads: int, number of heads in the group.
        block_size: int, number of positions in a block.
        look_back, grid, key_block_size: see `LocalHeads`.
        max_relative_distance: int or None, largest relative distance. None disables relative
            positions. Defaults to None.
        **kwargs: `token_bias` of `TokenBias`; and base layer keyword arguments.

    Raises:
        ValueError: if a size is not a positive integer, or `token_bias` is unknown.

    Source: the code of Roy et al. 2021.

    >>> heads = T2TLocalHeads(2, block_size=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    declared = (Window,)
    # Options that these heads do not have.
    fixed = {"sliding_window": None, "relative_positions": "learned", "position_biases": True}
    takes_global_tokens = False
    groups_queries = False
    # A chunk is processed position by position.
    reads_chunks = False

    @property
    def _sizes(self):
        return {**self.joined_sets[0].blocks, "key_block_size": self.key_block_size}

    def attend(self, *, causal, **arguments):
        terms = {"token_bias": self.bias_of_keys(causal), **self.tables()}
        return local.local_attention(causal=causal, **self._sizes, **terms, **arguments)

    def decode_step(self, *, cache, **arguments):
        output, state = local.local_step(
            cache=cache["local"], **self.joined_sets[0].blocks, **self.tables(), **arguments
        )
        return output, {"local": state}

    def cross_step(self, **arguments):
        return local.local_cross_step(**self._sizes, **self.tables(), **arguments)


@keras.saving.register_keras_serializable(package="rt_keras")
class T2TStridedHeads(RelativeTables, Heads):
    """Strided heads as in the authors' code; see `rt_keras.layers.StridedHeads`.

    Masks have no effect, queries attend to the zeros that pad the last stride, and a token bias is
    not supported.

    Args:
        num_heads: int, number of heads in the group.
        stride: int, distance between consecutive keys.
        max_relative_distance: int or None, largest relative distance, in strides. None disables
            relative positions. Defaults to None.
        **kwargs: base layer keyword arguments.

    Raises:
        ValueError: if a size is not a positive integer.

    Source: the code of Roy et al. 2021.

    >>> heads = T2TStridedHeads(2, stride=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    declared = (Strided,)
    # Like the other heads here, these cannot be joined with more keys.
    takes_global_tokens = False
    groups_queries = False

    def attend(self, **arguments):
        return strided.strided_attention(stride=self.stride, **self.tables(), **arguments)

    def decode_step(self, *, cache, **arguments):
        output, state = strided.strided_step(
            cache=cache["strided"], stride=self.stride, **self.tables(), **arguments
        )
        return output, {"strided": state}


class ClusterHeads(RelativeTables):
    """Mixin of clustered head groups.

    It precedes a group of `rt_keras.layers` in the list of base classes, and `TokenBias` follows
    that group. A subclass sets `pick_members`, an op that selects the members of each cluster;
    `members_by`, the name of the weight that the op reads; `count_by`, that of the number of
    clusters; and `block_size`, an int: sequences are padded to a multiple of it.
    """

    def attend(self, *, causal, **arguments):
        weights = {self.members_by: tf.convert_to_tensor(getattr(self, self.members_by))}
        sizes = {"window_size": self.window_size, "block_size": self.block_size}
        sizes["num_clusters"] = getattr(self, self.count_by)
        terms = {"token_bias": self.bias_of_keys(causal), **self.tables()}
        given = {"causal": causal, **sizes, **terms, **arguments}
        return clusters.cluster_attention(self.pick_members, weights, **given)


@keras.saving.register_keras_serializable(package="rt_keras")
class T2TRoutingHeads(ClusterHeads, CentroidHeads, TokenBias):
    """Routing heads as in the authors' code, balanced and causal by rank.

    With separate queries and keys, a causal query can see later positions. See `CentroidHeads` for
    how centroids learn.

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

    members_by = "centroids"
    count_by = "num_clusters"
    pick_members = staticmethod(nearest_members)

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


@keras.saving.register_keras_serializable(package="rt_keras")
class T2TClusterStridedHeads(T2TRoutingHeads):
    """Heads whose clusters select members at even steps from the nearest to the furthest.

    The arguments are those of `T2TRoutingHeads`. Queries attend to keys unlike themselves, while
    other kinds of heads attend to similar ones.

    Source: the code of Roy et al. 2021, which uses them for images; the paper does not describe
    them.

    >>> heads = T2TClusterStridedHeads(2, num_clusters=2, window_size=4, block_size=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    pick_members = staticmethod(clusters.strided_members)


@keras.saving.register_keras_serializable(package="rt_keras")
class T2THashedHeads(ClusterHeads, TokenBias):
    """Heads whose queries attend to the first keys in their hash bucket, causal by rank in it.

    The random projections of the hash are not trained.

    Args:
        num_heads: int, number of heads in the group.
        num_buckets: int, number of buckets per head, computed from floor(log2(num_buckets))
            projections.
        window_size: int, number of members of a bucket that attend.
        block_size: int, sequences are padded to a multiple of this size, which is that of
            the local heads in the same layer.
        share_qk: bool, whether queries are also keys. Defaults to False.
        max_relative_distance: int or None, largest distance of the relative positions. None
            disables them. Defaults to None.
        seed: int or None, seed of the projections. Defaults to None.
        **kwargs: `token_bias` of `TokenBias`; and base layer keyword arguments.

    Weights:
        projections: `[heads, bits, depth]`, not trainable.

    Raises:
        ValueError: if a size is not a positive integer, or there are fewer than 2 buckets.

    Source: the code of Roy et al. 2021, after Kitaev et al. 2020, Reformer, section 2.

    >>> heads = T2THashedHeads(2, num_buckets=4, window_size=4, block_size=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x).shape
    TensorShape([1, 2, 10, 8])
    """

    members_by = "projections"
    count_by = "num_buckets"

    def __init__(
        self,
        num_heads,
        num_buckets,
        window_size,
        block_size,
        share_qk=False,
        max_relative_distance=None,
        seed=None,
        **kwargs,
    ):
        super().__init__(num_heads, max_relative_distance, **kwargs)
        if positive_int("num_buckets", num_buckets) < 2:
            raise ValueError(f"num_buckets must be at least 2. Received: {num_buckets}")
        self.num_buckets = num_buckets
        self.window_size = positive_int("window_size", window_size)
        self.block_size = positive_int("block_size", block_size)
        self.share_qk = bool(share_qk)
        self.seed = seed

    def build(self, query_shape, value_shape=None, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        initializer = keras.initializers.Orthogonal(seed=self.seed)
        bits = self.num_buckets.bit_length() - 1
        self.add_constant("projections", bits, query_shape[-1], initializer=initializer)

    def pick_members(self, *arguments):
        return clusters.bucket_members(self.num_buckets, *arguments)
