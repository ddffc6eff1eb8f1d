"""Clusters: normalized vectors, their nearest centroids, and the order of (cluster, position)."""

from typing import NamedTuple

import tensorflow as tf

from rt_keras.ops.attend import accumulation_dtype
from rt_keras.ops.blocks import (
    ceil_div,
    move_axis,
    pad_axis,
    repeat_heads,
    size,
    sizes,
    split_blocks,
)
from rt_keras.ops.slices import num_slices

EPSILON = 1e-6
# The vectors that may serve as the key of a position.
ROUTED_KEYS = ("previous_query", "key")
# Number of positions in a run, whose clusters are compared in pairs; earlier runs are counted.
RUN_SIZE = 32


def normalize(x):
    """Computes layer normalization over the depth, with neither scale nor bias.

    ```
    normalize(x) = (x - mean(x)) / sqrt(variance(x) + 1e-6)
    ```

    Args:
        x: `[..., depth]`.

    Returns:
        `[..., depth]`, of norm sqrt(depth), computed in float32 (float64 for float64 input) and
        returned in the dtype of `x`.

    Source: Roy et al. 2021, section 4.1, where it projects vectors onto the unit ball, up to the
    factor sqrt(depth).

    >>> round(float(tf.norm(normalize(tf.constant([1.0, 2.0, 3.0, 4.0])))), 3)
    2.0
    """
    wide = tf.cast(x, accumulation_dtype(x.dtype))
    wide = wide - tf.reduce_mean(wide, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.square(wide), axis=-1, keepdims=True)
    return tf.cast(wide * tf.math.rsqrt(variance + EPSILON), x.dtype)


def centroid_scores(x, centroids, load_bias=None):
    """Computes the score of each vector for each centroid, `x · centroid_c + load_bias_c`.

    Args:
        x: normalized vectors, `[batch, heads, length, depth]`.
        centroids: `[key_heads, clusters, depth]`, each head of which serves heads / key_heads
            consecutive heads of `x`.
        load_bias: `[key_heads, clusters]`, or None for zeros.

    Returns:
        `[batch, heads, length, clusters]` in float32 (float64 for float64 vectors).
    """
    dtype = accumulation_dtype(x.dtype)
    centroids = repeat_heads(tf.cast(centroids, dtype), x.shape[1], axis=0)
    scores = tf.einsum("bhnd,hcd->bhnc", tf.cast(x, dtype), centroids)
    if load_bias is not None:
        scores += repeat_heads(tf.cast(load_bias, dtype), x.shape[1], axis=0)[:, None]
    return tf.stop_gradient(scores)


def nearest_centroid(x, centroids, load_bias=None):
    """Finds the cluster of each vector, `argmax_c x · centroid_c + load_bias_c`.

    Args:
        x: normalized vectors, `[batch, heads, length, depth]`.
        centroids: `[heads, clusters, depth]`.
        load_bias: `[heads, clusters]`, or None for zeros.

    Returns:
        int32 `[batch, heads, length]`.

    Source: Roy et al. 2021, section 4.1, μ(x). The bias follows Wang et al. 2024,
    Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts, section 3.

    >>> x = tf.constant([[[[1.0, -1.0], [-1.0, 1.0]]]])
    >>> nearest_centroid(x, tf.constant([[[1.0, 0.0], [0.0, 1.0]]])).numpy().tolist()
    [[[0, 1]]]
    """
    return tf.argmax(centroid_scores(x, centroids, load_bias), axis=-1, output_type=tf.int32)


def cluster_statistics(x, clusters, num_clusters, mask=None):
    """Computes the sum and the number of each cluster's members over the batch.

    Args:
        x: normalized vectors, `[batch, heads, length, depth]`.
        clusters: int `[batch, heads, length]`, the cluster of each vector.
        num_clusters: int, number of clusters.
        mask: bool `[batch, length]`, False for padding, which is left out; or None.

    Returns:
        Sums `[heads, clusters, depth]` and counts `[heads, clusters]`, float32 (float64 for
        float64 vectors).

    Source: Roy et al. 2021, section 4.1, whose update of the centroids uses the means.

    >>> x = tf.constant([[[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]]])
    >>> sums, counts = cluster_statistics(x, tf.constant([[[0, 1, 0]]]), num_clusters=2)
    >>> sums.numpy().tolist(), counts.numpy().tolist()
    ([[[6.0, 8.0], [3.0, 4.0]]], [[2.0, 1.0]])
    """
    dtype = accumulation_dtype(x.dtype)
    members = tf.one_hot(clusters, num_clusters, dtype=dtype)
    if mask is not None:
        members *= tf.cast(mask, dtype)[:, None, :, None]
    sums = tf.einsum("bhnc,bhnd->hcd", members, tf.cast(x, dtype))
    return tf.stop_gradient(sums), tf.reduce_sum(members, axis=[0, 2])


def commitment(x, clusters, centroids, mask=None):
    """Computes the mean squared distance of vectors to the centroids of their clusters.

    ```
    mean over the positions of ‖x - centroid_μ(x)‖²
    ```

    Args:
        x: normalized vectors, `[batch, heads, length, depth]`.
        clusters: int `[batch, heads, length]`, the cluster μ(x) of each vector.
        centroids: `[heads, clusters, depth]`.
        mask: bool `[batch, length]`, False for padding, which is left out; or None.

    Returns:
        A scalar, float32 (float64 for float64 vectors); 0 if there are no vectors but padding.

    Source: van den Oord et al. 2017, Neural Discrete Representation Learning, section 3.2.

    >>> x, centroids = tf.constant([[[[1.0, 2.0]]]]), tf.constant([[[0.0, 0.0], [1.0, 0.0]]])
    >>> float(commitment(x, tf.constant([[[1]]]), centroids))
    4.0
    """
    dtype = accumulation_dtype(x.dtype)
    members = tf.one_hot(clusters, centroids.shape[1], dtype=dtype)
    nearest = tf.einsum("bhnc,hcd->bhnd", members, tf.cast(centroids, dtype))
    distance = tf.reduce_sum(tf.square(tf.cast(x, dtype) - nearest), axis=-1)
    if mask is None:
        any_vector = tf.cast(tf.minimum(tf.size(distance), 1), dtype)
        return tf.math.multiply_no_nan(tf.reduce_mean(distance), any_vector)
    weight = tf.broadcast_to(tf.cast(mask, dtype)[:, None], tf.shape(distance))
    return tf.math.divide_no_nan(tf.reduce_sum(distance * weight), tf.reduce_sum(weight))


def prepare(query, key, normalized=True):
    """Converts or normalizes queries and keys; returns one tensor twice if `key` is None."""
    prepared = normalize if normalized else tf.convert_to_tensor
    query = prepared(query)
    return query, query if key is None else prepared(key)


def logit_bound(depth, bias):
    """Returns the bound of the logits of normalized vectors, sqrt(depth); None with a bias."""
    return depth**0.5 if bias is None else None


def shifts_keys(routed_key):
    """Returns whether the key of a position is the query of the previous position.

    Args:
        routed_key: string, one of `ROUTED_KEYS`.

    Raises:
        ValueError: if `routed_key` is unknown.
    """
    if routed_key not in ROUTED_KEYS:
        raise ValueError(
            f"routed_key must be one of {ROUTED_KEYS}. Received: routed_key={routed_key!r}"
        )
    return routed_key == "previous_query"


class Assigned(NamedTuple):
    """Queries and keys for the logits, and the clusters of each.

    The clusters of padding are `num_clusters`, in which no query attends.
    """

    query: tf.Tensor  # [batch, heads, queries, depth]
    key: tf.Tensor  # [batch, key_heads, keys, depth]
    query_clusters: tf.Tensor  # int32 [batch, heads, num_probes, queries]
    key_clusters: tf.Tensor  # int32 [batch, key_heads, 1, keys]


class Assignment(NamedTuple):
    """The centroids and options that determine clusters and logits; see `nearest_attention`.

    Args:
        centroids: `[key_heads, clusters, depth]`.
        num_probes: int, number of clusters in which a query attends. Defaults to 1.
        load_bias: `[key_heads, clusters]`, or None for zeros.
        scale: `[heads]`, a factor of the logits besides 1 / sqrt(depth), or None for ones.
        use_query_key_norm: bool, whether logits use normalized vectors. Defaults to True.
    """

    centroids: tf.Tensor
    num_probes: int = 1
    load_bias: tf.Tensor | None = None
    scale: tf.Tensor | None = None
    use_query_key_norm: bool = True

    def assign(self, query, key, query_mask=None, key_mask=None):
        """Returns the `Assigned` queries and keys; `key` is None for the queries themselves."""
        normalized = prepare(query, key)
        query_clusters = self._nearest(normalized[0], query_mask, self.num_probes)
        if key is None and key_mask is query_mask:
            key_clusters = query_clusters[:, :, :1]
        else:
            key_clusters = self._nearest(normalized[1], key_mask, 1)
        if not self.use_query_key_norm:
            normalized = prepare(query, key, normalized=False)
        return Assigned(*normalized, query_clusters, key_clusters)

    def scaled(self, query):
        """Scales queries such that their products with keys are logits."""
        return self.with_scale(query * query.shape[3] ** -0.5)

    def with_scale(self, query):
        """Multiplies the queries of each head by its `scale`, if there is one."""
        if self.scale is None:
            return query
        return query * tf.cast(self.scale, query.dtype)[:, None, None]

    def _nearest(self, x, mask, count):
        """Returns the nearest clusters of each position, `[batch, heads, count, length]`."""

        def nearest(x):
            scores = centroid_scores(x, self.centroids, self.load_bias)
            if count == 1:
                return tf.argmax(scores, axis=-1, output_type=tf.int32)[:, :, None]
            return tf.linalg.matrix_transpose(tf.math.top_k(scores, count).indices)

        length, num_clusters = size(x, 2), self.centroids.shape[1]
        slices = num_slices(length * size(x, 0) * x.shape[1] * num_clusters)
        if slices == 1:
            clusters = nearest(x)
        else:
            at_once = ceil_div(length, slices)
            x = split_blocks(tf.stop_gradient(x), ceil_div(length, at_once), at_once)
            # [slices, batch, heads, count, at_once]
            clusters = tf.map_fn(nearest, move_axis(x, 2, 0), fn_output_signature=tf.int32)
            clusters = tf.concat(tf.unstack(clusters), axis=3)[..., :length]
        if mask is not None:
            clusters = tf.where(tf.cast(mask, tf.bool)[:, None, None], clusters, num_clusters)
        return clusters


class ClusterOrder(NamedTuple):
    """The order of (cluster, position) of some entries."""

    order: tf.Tensor  # int32 [batch, heads, entries], the entry at each rank
    rank: tf.Tensor  # int32 [batch, heads, entries], the rank of each entry
    starts: tf.Tensor  # int32 [batch, heads, clusters + 2], the rank of each cluster's first entry


def sort_by_cluster(clusters, num_clusters):
    """Sorts entries by (cluster, position).

    Args:
        clusters: int `[batch, heads, probes, length]`, at most `num_clusters`, which is padding.
        num_clusters: int, number of clusters.

    Returns:
        A `ClusterOrder` of the entries, each of which is probe * length + position. Its `starts`
        also have the rank of the first entry of padding, and the number of entries.
    """
    batch, heads, probes, length = sizes(clusters)
    # One list, in which the entries of a position are consecutive.
    entries = tf.reshape(tf.linalg.matrix_transpose(clusters), [batch, heads, 1, length * probes])
    rank, starts = rank_in_clusters(entries, entries, num_clusters + 1)
    rank = tf.linalg.matrix_transpose(tf.reshape(rank, [batch, heads, length, probes]))
    rank = tf.reshape(rank, [batch, heads, probes * length])
    return ClusterOrder(inverse_permutation(rank), rank, starts[:, :, 0])


def rank_in_clusters(clusters, others, num_clusters, inclusive=False):
    """Counts the others that come before each entry in the order of (cluster, position).

    ```
    rank_i = number of j with others_j < clusters_i, or others_j = clusters_i and j < i
    ```

    The others of each cluster are counted in runs of `RUN_SIZE` positions and summed over earlier
    runs; inside a run, entries are compared in pairs. For n entries and k clusters that makes
    n · (k + `RUN_SIZE`) comparisons. On a CPU, a sort takes eight times as long for 32,768 entries
    and 128 clusters, and three times as long for 131,072 entries and 512 clusters.

    Args:
        clusters: int `[batch, heads, lists, length]`, the cluster of each entry.
        others: int `[batch, heads, 1 or lists, length]`; `clusters` to sort the entries.
        num_clusters: int, above every cluster.
        inclusive: bool, whether j = i counts too. Defaults to False.

    Returns:
        Two int32 tensors: the ranks `[batch, heads, lists, length]`; and for each cluster the
        number of others in lower clusters, followed by the number of all others,
        `[batch, heads, 1 or lists, num_clusters + 1]`.

    >>> ranks, starts = rank_in_clusters(*2 * [tf.constant([[[[1, 0, 1, 2, 0]]]])], 3)
    >>> ranks.numpy().tolist(), starts.numpy().tolist()
    ([[[[2, 0, 3, 4, 1]]]], [[[[0, 2, 4, 5]]]])
    """
    runs, other_runs = _split_runs(clusters, RUN_SIZE), _split_runs(others, RUN_SIZE)
    counts = _count_members(other_runs, num_clusters)
    before = sums_before(counts)
    starts = _starts(before[:, :, :, -1] + counts[:, :, :, -1])
    before += starts[:, :, :, None, :-1]
    step = tf.range(RUN_SIZE)
    earlier = step <= step[:, None] if inclusive else step < step[:, None]
    # [batch, heads, lists, runs, RUN_SIZE, RUN_SIZE]
    equal = (runs[..., :, None] == other_runs[..., None, :]) & earlier
    ranks = _look_up(before, runs) + tf.reduce_sum(tf.cast(equal, tf.float32), axis=5)
    return _join_runs(ranks, size(clusters, 3)), tf.cast(starts, tf.int32)


def rank_at_blocks(clusters, others, num_clusters, block_size, shift):
    """Counts the others that come before a block near each entry, in the order of clusters.

    ```
    rank_i = number of j with others_j < clusters_i, or others_j = clusters_i and j before the block
             `shift` blocks after i's
    ```

    Args:
        clusters: int `[batch, heads, lists, length]`.
        others: int `[batch, heads, 1, length]`.
        num_clusters: int, above every cluster.
        block_size: int, positions in a block.
        shift: int, number of blocks from that of an entry; blocks beyond the ends are empty.

    Returns:
        Ranks and starts, as in `rank_in_clusters`.

    >>> clusters = tf.constant([[[[1, 0, 1, 1, 0]]]])
    >>> rank_at_blocks(clusters, clusters, 2, block_size=2, shift=0)[0].numpy().tolist()
    [[[[2, 0, 3, 3, 1]]]]
    """
    runs, other_runs = _split_runs(clusters, block_size), _split_runs(others, block_size)
    counts = _count_members(other_runs, num_clusters)
    before = sums_before(pad_axis(counts, 3, 0, 1))
    starts = _starts(before[:, :, :, -1])
    blocks = size(counts, 3)
    rows = tf.clip_by_value(tf.range(blocks) + shift, 0, blocks)
    before = tf.gather(before, rows, axis=3) + starts[:, :, :, None, :-1]
    return _join_runs(_look_up(before, runs), size(clusters, 3)), tf.cast(starts, tf.int32)


def inverse_permutation(ranks):
    """Returns the entry at each rank, from each entry's rank; both int32 `[batch, heads, n]`."""
    batch, heads, count = sizes(ranks)
    sequences = tf.reshape(tf.range(batch * heads), [batch, heads, 1]) * count
    entries = tf.broadcast_to(tf.range(count), [batch, heads, count])
    places = tf.reshape(sequences + ranks, [-1, 1])  # [batch * heads * n, 1]
    order = tf.zeros([batch * heads * count], tf.int32)
    order = tf.tensor_scatter_nd_update(order, places, tf.reshape(entries, [-1]))
    return tf.reshape(order, [batch, heads, count])


def _split_runs(clusters, run_size):
    """Splits `[..., length]` to `[..., runs, run_size]`. Padding gets -1, which is no cluster."""
    *shape, length = sizes(clusters)
    runs = ceil_div(length, run_size)
    clusters = pad_axis(clusters, 3, 0, runs * run_size - length, fill=-1)
    return tf.reshape(clusters, [*shape, runs, run_size])


def _join_runs(ranks, length):
    """Inverts `_split_runs`, as int32."""
    *shape, runs, run_size = sizes(ranks)
    return tf.reshape(tf.cast(ranks, tf.int32), [*shape, runs * run_size])[..., :length]


def _count_members(runs, num_clusters):
    """Counts the members of each cluster in each run, `[batch, heads, lists, runs, clusters]`."""
    # [batch, heads, lists, runs, run_size, clusters]
    is_member = runs[..., None] == tf.range(num_clusters, dtype=runs.dtype)
    # Floats count exactly up to 2²⁴.
    return tf.reduce_sum(tf.cast(is_member, tf.float32), axis=4)


def _starts(totals):
    """Returns the rank of each cluster's first entry, and the total, from cluster sizes."""
    return tf.cumsum(pad_axis(totals, 3, 1, 0), axis=3)


def _look_up(table, clusters):
    """Looks up clusters in each run's table, `[batch, heads, lists, runs, clusters]`."""
    batch, heads, lists, runs, columns = sizes(table)
    shape = sizes(clusters)  # [batch, heads, lists, runs, run_size]
    index = tf.maximum(clusters, 0) + tf.range(runs)[:, None] * columns
    index = tf.reshape(index, [batch, heads, lists, -1])
    table = tf.reshape(table, [batch, heads, lists, runs * columns])
    return tf.reshape(tf.gather(table, index, batch_dims=3), shape)


def sums_before(x):
    """Computes sums over the rows before each row, `[batch, heads, lists, rows, columns]`.

    The sums are products with triangles of ones: XLA on a CPU unrolls a cumulative sum row by row.
    """
    batch, heads, lists, rows, columns = sizes(x)
    if not isinstance(rows, int):
        return tf.cumsum(x, axis=3, exclusive=True)
    if rows <= RUN_SIZE:
        return tf.matmul(_triangle(rows), x)
    groups = ceil_div(rows, RUN_SIZE)
    x = pad_axis(x, 3, 0, groups * RUN_SIZE - rows)
    x = tf.reshape(x, [batch, heads, lists, groups, RUN_SIZE, columns])
    before = sums_before(tf.reduce_sum(x, axis=4))[..., None, :]
    before += tf.matmul(_triangle(RUN_SIZE), x)
    return tf.reshape(before, [batch, heads, lists, groups * RUN_SIZE, columns])[:, :, :, :rows]


def _triangle(rows):
    return tf.cast(tf.range(rows) < tf.range(rows)[:, None], tf.float32)
