"""The heads of the authors' code; `rt_keras.convert.t2t` lists what differs from other heads."""

import keras
import tensorflow as tf

from rt_keras.convert.t2t import clusters
from rt_keras.convert.t2t.attend import attend_step
from rt_keras.convert.t2t.local import as_last_block, local_attention
from rt_keras.convert.t2t.strided import strided_attention
from rt_keras.convert.t2t.token_bias import TokenBias
from rt_keras.layers.abilities import Abilities
from rt_keras.layers.centroids import Centroids
from rt_keras.layers.head_group import HeadGroup
from rt_keras.layers.head_options import positive_int
from rt_keras.ops.balanced import nearest_members
from rt_keras.ops.blocks import places_of_rows, size
from rt_keras.ops.caches import check_position, write
from rt_keras.ops.local.cached import add_position, keys_in_view, keys_in_window, local_cache
from rt_keras.ops.local.neighborhood import Neighborhood
from rt_keras.ops.nearest.assign import cluster_statistics
from rt_keras.ops.strided import keys_in_column, strided_cache

# The tables of relative positions.
TABLES = ("relative_embeddings", "relative_values")


class RelativeTables(keras.layers.Layer):
    """Relative positions from tables shared by all heads: one for the keys, one for the values.

    Args:
        max_relative_distance: int, largest distance.
        **kwargs: base layer keyword arguments.
    """

    def __init__(self, max_relative_distance, **kwargs):
        super().__init__(**kwargs)
        self.max_relative_distance = positive_int("max_relative_distance", max_relative_distance)

    def build(self, query_shape, value_shape):
        shape = 1, 2 * self.max_relative_distance + 1
        options = {"initializer": keras.initializers.VarianceScaling(0.2, "fan_avg", "uniform")}
        depths = query_shape[-1], value_shape[-1]
        self.relative_embeddings, self.relative_values = (
            self.add_weight((*shape, depth), name=name, **options)
            for name, depth in zip(TABLES, depths)
        )


class T2THeads(HeadGroup):
    """Base class of the heads of the authors' code.

    Args:
        num_heads: int, number of heads in the group.
        max_relative_distance: int or None, largest relative distance. None disables relative
            positions. Defaults to None.
        **kwargs: base layer keyword arguments.
    """

    def __init__(self, num_heads, max_relative_distance=None, **kwargs):
        super().__init__(num_heads, **kwargs)
        self.max_relative_distance = max_relative_distance
        self.positions = None
        if max_relative_distance is not None:
            self.positions = RelativeTables(
                max_relative_distance, dtype=self.dtype_policy, name="relative_tables"
            )

    def build(self, query_shape, value_shape=None, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        if self.positions is not None:
            self.positions.build(query_shape, value_shape or query_shape)

    def tables(self):
        """Returns the relative positions as keyword arguments of the ops."""
        names = () if self.positions is None else TABLES
        return {name: tf.convert_to_tensor(getattr(self.positions, name)) for name in names}

    def get_config(self):
        return {**super().get_config(), "max_relative_distance": self.max_relative_distance}


@keras.saving.register_keras_serializable(package="rt_keras")
class T2TLocalHeads(TokenBias, T2THeads):
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

    def __init__(
        self,
        num_heads,
        block_size,
        look_back=1,
        grid=None,
        key_block_size=None,
        max_relative_distance=None,
        **kwargs,
    ):
        super().__init__(num_heads, max_relative_distance, **kwargs)
        self.block_size = positive_int("block_size", block_size)
        self.look_back = tuple(look_back) if isinstance(look_back, list) else look_back
        self.grid = tuple(grid) if isinstance(grid, list) else grid
        self.key_block_size = key_block_size

    @property
    def abilities(self):
        one_size = self.key_block_size in (None, self.block_size)
        return Abilities(
            causal=one_size,
            strictly_causal=True,
            cached=one_size,
            bounded=self.grid is None,
            across=True,
            linear=self.positions is None,
        )

    def attend(self, inputs, return_logsumexp=False):
        options = {**self._blocks(), **self.tables()}
        options |= {"token_bias": self.bias_of_keys(inputs.causal), **inputs.sequence_options()}
        return local_attention(inputs.query, inputs.key, inputs.value, **options)

    def prefill_cache(self, inputs, max_length):
        vectors = inputs.key, inputs.value, inputs.count
        return local_cache(*vectors, self._neighborhood(), max_length=max_length)

    def attend_step(self, inputs, cache, return_logsumexp=False):
        position, place = inputs.position, self._neighborhood()
        cache = add_position(cache, position, inputs.key, inputs.value, place, inputs.count)
        keys = keys_in_view(cache, position, place)
        if self.grid is not None:
            keys = as_last_block(keys, position, self.block_size)
        return attend_step(inputs.query, *keys, **self.tables()), cache

    def attend_across(self, inputs):
        keys = {"key": inputs.key, "value": inputs.value}
        keys = keys_in_window(keys, inputs.position, self._neighborhood(), inputs.key_mask)
        keys = as_last_block(keys, inputs.position, self.block_size)
        return attend_step(inputs.query, *keys, **self.tables())

    def _neighborhood(self):
        return Neighborhood(**self._blocks())

    def _blocks(self):
        return {
            "block_size": self.block_size,
            "look_back": self.look_back,
            "grid": self.grid,
            "key_block_size": self.key_block_size,
        }

    def get_config(self):
        return {**super().get_config(), **self._blocks()}


@keras.saving.register_keras_serializable(package="rt_keras")
class T2TStridedHeads(T2THeads):
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

    def __init__(self, num_heads, stride, max_relative_distance=None, **kwargs):
        super().__init__(num_heads, max_relative_distance, **kwargs)
        self.stride = positive_int("stride", stride)

    @property
    def abilities(self):
        return Abilities(
            strictly_causal=True, cached=True, bounded=False, linear=self.positions is None
        )

    def attend(self, inputs, return_logsumexp=False):
        return strided_attention(inputs, self.stride, self.tables())

    def prefill_cache(self, inputs, max_length):
        return strided_cache(inputs.key, inputs.value, stride=self.stride, max_length=max_length)

    def attend_step(self, inputs, cache, return_logsumexp=False):
        check_position(inputs.position, size(cache["key"], 2), inputs.count)
        vectors = {"key": inputs.key, "value": inputs.value}
        cache = write(cache, places_of_rows(inputs.position, 0), inputs.count, **vectors)
        keys = keys_in_column(cache, inputs.position, self.stride)
        return attend_step(inputs.query, *keys, **self.tables()), cache

    def get_config(self):
        return {**super().get_config(), "stride": self.stride}


class ClusterHeads(TokenBias, T2THeads):
    """Base class of clustered head groups.

    A subclass defines `num_clusters`, `member_weights`, the weights that select the members of each
    cluster, and `pick_members`, an op that selects them.

    Args:
        num_heads: int, number of heads in the group.
        window_size: int, number of members of a cluster.
        block_size: int, sequences are padded to a multiple of this size.
        share_qk: bool, whether queries are also keys. Defaults to False.
        max_relative_distance: int or None, largest relative distance. Defaults to None.
        **kwargs: `token_bias` of `TokenBias`; and base layer keyword arguments.
    """

    def __init__(
        self,
        num_heads,
        window_size,
        block_size,
        share_qk=False,
        max_relative_distance=None,
        **kwargs,
    ):
        super().__init__(num_heads, max_relative_distance, **kwargs)
        self.window_size = positive_int("window_size", window_size)
        self.block_size = positive_int("block_size", block_size)
        self.share_qk = bool(share_qk)

    @property
    def abilities(self):
        return Abilities(linear=self.positions is None)

    def attend(self, inputs, return_logsumexp=False):
        sizes = self.num_clusters, self.window_size, self.block_size
        shared = {"token_bias": self.bias_of_keys(inputs.causal), **self.tables()}
        weights = self.member_weights()
        return clusters.cluster_attention(inputs, self.pick_members, weights, *sizes, shared)

    def get_config(self):
        names = "window_size", "block_size", "share_qk"
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


@keras.saving.register_keras_serializable(package="rt_keras")
class T2TRoutingHeads(ClusterHeads):
    """Routing heads as in the authors' code, balanced and causal by rank.

    With separate queries and keys, a causal query can see later positions. See `Centroids` for
    how centroids learn.

    Args:
        num_heads: int, number of heads in the group.
        num_clusters: int, number of centroids per head.
        window_size: int, number of members of a cluster.
        block_size: int, sequences are padded to a multiple of this size, which is that of
            the local heads in the same layer.
        **kwargs: `token_bias` of `TokenBias`; `share_qk` and `max_relative_distance` of
            `ClusterHeads`; and base layer keyword arguments.

    Source: the code of Roy et al. 2021.

    >>> heads = T2TRoutingHeads(2, num_clusters=2, window_size=4, block_size=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    pick_members = staticmethod(nearest_members)

    def __init__(
        self,
        num_heads,
        num_clusters,
        window_size,
        block_size,
        commitment_weight=1e-4,
        seed=None,
        **kwargs,
    ):
        super().__init__(num_heads, window_size, block_size, **kwargs)
        self.num_clusters = num_clusters
        self.commitment_weight = commitment_weight
        self.seed = seed
        self.centroids = T2TCentroids(
            num_clusters, commitment_weight, seed, dtype=self.dtype_policy, name="centroids"
        )

    def build(self, query_shape, value_shape=None, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        self.centroids.build(query_shape, sources=1 if self.share_qk else 2)

    def member_weights(self):
        return {"centroids": tf.convert_to_tensor(self.centroids.centroids)}

    def collect_statistics(self, inputs):
        # Scaled before normalization, which matters because of its epsilon.
        scaled = inputs._replace(query=inputs.query * inputs.query.shape[-1] ** -0.5)
        super().collect_statistics(scaled)

    def get_config(self):
        names = "num_clusters", "commitment_weight", "seed"
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


class T2TCentroids(Centroids):
    """Centroids with the statistics and the loss of the authors' code."""

    def statistics(self, vectors, clusters, mask):
        sums, _ = cluster_statistics(vectors, clusters, self.num_clusters, mask)
        return sums, mixed_counts(clusters, self.num_clusters, mask)

    def commitment_loss(self, distance):
        # This is also a mean over the depth, and shared vectors count twice.
        sources, *_, depth = self.member_sums.shape
        return super().commitment_loss(distance) * (2 if sources == 1 else 1) / depth


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
class T2THashedHeads(ClusterHeads):
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

    def __init__(self, num_heads, num_buckets, window_size, block_size, seed=None, **kwargs):
        super().__init__(num_heads, window_size, block_size, **kwargs)
        if positive_int("num_buckets", num_buckets) < 2:
            raise ValueError(f"num_buckets must be at least 2. Received: {num_buckets}")
        self.num_clusters = self.num_buckets = num_buckets
        self.seed = seed

    def build(self, query_shape, value_shape=None, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        initializer = keras.initializers.Orthogonal(seed=self.seed)
        shape = self.num_buckets.bit_length() - 1, query_shape[-1]
        self.projections = self.add_constant("projections", *shape, initializer=initializer)

    def member_weights(self):
        return {"projections": tf.convert_to_tensor(self.projections)}

    def pick_members(self, *arguments):
        return clusters.bucket_members(self.num_buckets, *arguments)

    def get_config(self):
        return {**super().get_config(), "num_buckets": self.num_buckets, "seed": self.seed}
