"""Functions that both assignments of routing attention share, `balanced.py` and `nearest.py`.

Normalization, scores, the nearest centroid, and the statistics that update centroids.
"""

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


def prepare(query, key, normalized=True):
    """Converts or normalizes queries and keys; returns one tensor twice if `key` is None."""
    prepared = normalize if normalized else tf.convert_to_tensor
    query = prepared(query)
    return query, query if key is None else prepared(key)


def logit_bound(depth, bias):
    """Returns the bound of the logits of normalized vectors, sqrt(depth); None with a bias."""
    return depth**0.5 if bias is None else None


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


# The vectors that may serve as the key of a position.
ROUTED_KEYS = ("previous_query", "key")


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


class Routed(NamedTuple):
    """Queries and keys for the logits, and their clusters.

    Args:
        query: `[batch, heads, queries, depth]`.
        key: `[batch, key_heads, keys, depth]`; `query` itself if queries and keys are shared.
        of_queries: int32 `[batch, heads, num_probes, queries]`, the clusters of queries.
        of_keys: int32 `[batch, key_heads, 1, keys]`, the clusters of keys.
    """

    query: tf.Tensor
    key: tf.Tensor
    of_queries: tf.Tensor
    of_keys: tf.Tensor


class Routing(NamedTuple):
    """Options that determine clusters and logits; see `nearest_attention`.

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

    def route(self, query, key, query_mask=None, key_mask=None):
        """Returns the `Routed` queries and keys; `key` is None for the queries themselves."""
        routed_query, routed_key = prepare(query, key)
        of_queries = self._clusters(routed_query, query_mask, self.num_probes)
        if key is None and key_mask is query_mask:
            of_keys = of_queries[:, :, :1]
        else:
            of_keys = self._clusters(routed_key, key_mask, 1)
        if self.use_query_key_norm:
            return Routed(routed_query, routed_key, of_queries, of_keys)
        return Routed(*prepare(query, key, normalized=False), of_queries, of_keys)

    def scaled(self, query):
        """Scales queries such that their products with keys are logits."""
        query = query * query.shape[3] ** -0.5
        if self.scale is None:
            return query
        return query * tf.cast(self.scale, query.dtype)[:, None, None]

    def _clusters(self, x, mask, count):
        """Returns the `count` nearest clusters of each position, `[batch, heads, count, length]`.

        Padding gets an extra cluster after the last one, in which no query attends.
        """

        def nearest(x):
            scores = centroid_scores(x, self.centroids, self.load_bias)
            if count == 1:
                return tf.argmax(scores, axis=-1, output_type=tf.int32)[:, :, None]
            return tf.linalg.matrix_transpose(tf.math.top_k(scores, count).indices)

        length, num_clusters = size(x, 2), self.centroids.shape[1]
        chunks = num_slices(length * size(x, 0) * x.shape[1] * num_clusters)
        if chunks == 1:
            clusters = nearest(x)
        else:
            at_once = ceil_div(length, chunks)
            x = split_blocks(tf.stop_gradient(x), ceil_div(length, at_once), at_once)
            clusters = tf.map_fn(nearest, move_axis(x, 2, 0), fn_output_signature=tf.int32)
            clusters = tf.concat(tf.unstack(clusters), axis=3)[..., :length]
        if mask is not None:
            clusters = tf.where(tf.cast(mask, tf.bool)[:, None, None], clusters, num_clusters)
        return clusters


# Number of positions in a run, whose clusters are compared in pairs; earlier runs are counted.
RUN_SIZE = 32


def sort_by_cluster(clusters, num_clusters):
    """Sorts entries by (cluster, position).

    Args:
        clusters: int `[batch, heads, probes, length]`, at most `num_clusters`.
        num_clusters: int, number of clusters.

    Returns:
        Three int32 tensors: the entries in that order, each as probe * length + position,
        `[batch, heads, probes * length]`; the index of each entry in that order, of the same shape;
        and the index of the first entry of each cluster and of padding, followed by the number of
        entries, `[batch, heads, num_clusters + 2]`.
    """
    batch, heads, probes, length = sizes(clusters)
    # One list, in which the entries of a position are consecutive.
    entries = tf.reshape(tf.linalg.matrix_transpose(clusters), [batch, heads, 1, length * probes])
    place, starts = rank_in_clusters(entries, entries, num_clusters + 1)
    place = tf.linalg.matrix_transpose(tf.reshape(place, [batch, heads, length, probes]))
    place = tf.reshape(place, [batch, heads, probes * length])
    return inverse_permutation(place), place, starts[:, :, 0]


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
    length = size(clusters, 3)
    own, others = _runs(clusters, RUN_SIZE), _runs(others, RUN_SIZE)
    # Floats count exactly up to 2²⁴.
    here = others[..., None] == tf.range(num_clusters, dtype=others.dtype)
    counts = tf.reduce_sum(tf.cast(here, tf.float32), axis=4)
    before = sums_before(counts)
    starts = _starts(before[:, :, :, -1] + counts[:, :, :, -1])
    before += starts[:, :, :, None, :-1]
    of_run = _look_up(before, own)
    step = tf.range(RUN_SIZE)
    earlier = step <= step[:, None] if inclusive else step < step[:, None]
    equal = (own[..., :, None] == others[..., None, :]) & earlier
    ranks = of_run + tf.reduce_sum(tf.cast(equal, tf.float32), axis=5)
    return _join_runs(ranks, length), tf.cast(starts, tf.int32)


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
    length = size(clusters, 3)
    own, others = _runs(clusters, block_size), _runs(others, block_size)
    here = others[..., None] == tf.range(num_clusters, dtype=others.dtype)
    counts = tf.reduce_sum(tf.cast(here, tf.float32), axis=4)
    before = sums_before(pad_axis(counts, 3, 0, 1))
    starts = _starts(before[:, :, :, -1])
    blocks = size(counts, 3)
    rows = tf.clip_by_value(tf.range(blocks) + shift, 0, blocks)
    before = tf.gather(before, rows, axis=3) + starts[:, :, :, None, :-1]
    return _join_runs(_look_up(before, own), length), tf.cast(starts, tf.int32)


def inverse_permutation(ranks):
    """Returns the entry at each index, from each entry's index; both int32 `[batch, heads, n]`."""
    batch, heads, count = (size(ranks, axis) for axis in range(3))
    sequences = tf.reshape(tf.range(batch * heads), [batch, heads, 1]) * count
    entries = tf.broadcast_to(tf.range(count), [batch, heads, count])
    places = tf.reshape(sequences + ranks, [-1, 1])
    order = tf.zeros([batch * heads * count], tf.int32)
    order = tf.tensor_scatter_nd_update(order, places, tf.reshape(entries, [-1]))
    return tf.reshape(order, [batch, heads, count])


def _runs(clusters, run_size):
    """Splits `[batch, heads, lists, length]` to `[batch, heads, lists, runs, run_size]`.

    Padding gets -1, which is no cluster.
    """
    batch, heads, lists, length = sizes(clusters)
    runs = ceil_div(length, run_size)
    clusters = pad_axis(clusters, 3, 0, runs * run_size - length, fill=-1)
    return tf.reshape(clusters, [batch, heads, lists, runs, run_size])


def _join_runs(ranks, length):
    """Inverts `_runs`, as int32."""
    shape = [size(ranks, axis) for axis in range(5)]
    return tf.reshape(tf.cast(ranks, tf.int32), [*shape[:3], shape[3] * shape[4]])[..., :length]


def _starts(totals):
    """Returns the index of each cluster's first entry, and the total, from cluster sizes."""
    return tf.cumsum(tf.pad(totals, [[0, 0], [0, 0], [0, 0], [1, 0]]), axis=3)


def _look_up(table, clusters):
    """Looks up clusters in each run's table, `[batch, heads, lists, runs, clusters]`."""
    batch, heads, lists, runs, columns = sizes(table)
    shape = sizes(clusters)
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
    before = tf.reshape(before, [batch, heads, lists, groups * RUN_SIZE, columns])
    return before[:, :, :, :rows]


def _triangle(rows):
    return tf.cast(tf.range(rows) < tf.range(rows)[:, None], tf.float32)
