"""The order of (cluster, position), found by counting instead of sorting."""

import tensorflow as tf

from rt_keras.ops.blocks import ceil_div, pad_axis, size, sizes

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
