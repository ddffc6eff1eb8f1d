"""Attention of queries to lists of their clusters' members, such as rings of the last ones."""

import tensorflow as tf

from rt_keras.ops.blocks import ceil_div, flatten_blocks, fold_heads, size, sizes, split_blocks
from rt_keras.ops.caches import numbers_of_slots
from rt_keras.ops.nearest.assign import rank_in_clusters, sort_by_cluster
from rt_keras.ops.nearest.separate import merge_probes, staircase
from rt_keras.ops.nearest.shared import Keys, QueryBlocks, attend_blocks, block_size_of, cut_windows
from rt_keras.ops.slices import over_blocks, slices_of_blocks

# Minimum number of queries in a block, below which small matrices waste time.
MIN_BLOCK_SIZE = 8


def attend_to_lists(query, query_clusters, rings, key_clusters, options):
    """Computes attention of the queries of a chunk to the members in the rings.

    A query sees as many of the last members of its clusters as a ring is long. Members of the chunk
    up to its own position count first; attention to them is computed elsewhere.

    Args:
        query: `[batch, heads, length, depth]`, scaled.
        query_clusters: int `[batch, key_heads, heads / key_heads * probes, length]`, the clusters
            of each query.
        rings: dictionary of "key" and "value", `[batch, key_heads, clusters, window, ...]`,
            "counts", and optionally "positions", relative to the start of the chunk.
        key_clusters: int `[batch, key_heads, 1, length]`, the clusters of the chunk's members.
        options: the `Options`.

    Returns:
        `[batch, heads, length, value_depth]`, and the logsumexp of the logits,
        `[batch, heads, length]`.
    """
    window = size(rings["key"], 3)
    counts = counts_at(rings["counts"], query_clusters, key_clusters)
    # The number of the first member that a query sees.
    first = tf.maximum(counts - window, 0)
    lists = Keys(
        rings["key"],
        rings["value"],
        key_positions=rings.get("positions"),
        number=numbers_of_slots(rings["counts"], window),
    )
    stairs, queries = _on_tiles(query, query_clusters, lists, first, tf.int32.max)
    lists = lists.map(_flatten_lists)
    results = attend_blocks(queries, lists, 1, stairs.slices, options)
    heads, key_heads = query.shape[1], size(query_clusters, 1)
    probes = size(query_clusters, 2) * key_heads // heads
    return merge_probes(stairs, *results, heads, probes)


def counts_at(counts, query_clusters, key_clusters):
    """Counts the members of the clusters of each query, up to its own position.

    Args:
        counts: int `[batch, key_heads, clusters]`, the number of members before the chunk.
        query_clusters: int `[batch, key_heads, lists, length]`, the clusters of each query.
        key_clusters: int `[batch, key_heads, 1, length]`, the clusters of the chunk's members.

    Returns:
        int `[batch, key_heads, lists, length]`.
    """
    num_clusters = size(counts, 2)
    rank, starts = rank_in_clusters(query_clusters, key_clusters, num_clusters + 1, inclusive=True)
    rank -= tf.gather(starts[:, :, 0], query_clusters, batch_dims=2)
    return rank + tf.gather(counts, query_clusters, batch_dims=2)


def search_lists(search, query, query_clusters, key, number, last, dtypes):
    """Applies a function to queries and the lists of members of their clusters.

    Args:
        search: function of queries `[batch, heads, tiles, queries, depth]`, the number of the last
            member that each may see, `[batch, heads, tiles, queries]`, and keys and numbers of
            their lists, `[batch, heads, tiles, members, ...]`. It returns a tuple of
            `[batch, heads, tiles, queries, results]`.
        query: `[batch, heads, length, depth]`, scaled.
        query_clusters: int `[batch, heads, probes, length]`, the clusters of each query.
        key: `[batch, heads, clusters, members, depth]`.
        number: int `[batch, heads, clusters, members]`.
        last: int `[batch, heads, probes, length]`.
        dtypes: the dtypes of the results.

    Returns:
        A tuple of `[batch, heads, probes, length, results]`.
    """
    stairs, queries = _on_tiles(query, query_clusters, Keys(key, key), last, -1)

    def search_tiles(part):
        queries = QueryBlocks(*map(part.get, QueryBlocks._fields))
        lists = (cut_windows(part[name], queries.window, 1) for name in ("key", "number"))
        return search(queries.query, queries.first, *lists)

    lists = {"key": _flatten_lists(key), "number": _flatten_lists(number)}
    results = over_blocks(search_tiles, queries._asdict(), lists, stairs.slices, dtypes)
    probes, length = size(query_clusters, 2), size(query_clusters, 3)
    return tuple(split_blocks(stairs.of_rows(x), probes, length) for x in results)


def _on_tiles(query, query_clusters, lists, first, unused):
    """Sorts queries by cluster, and lays out tiles of their blocks and lists; see `staircase`.

    Args:
        query: `[batch, heads, length, depth]`, scaled.
        query_clusters: int `[batch, key_heads, heads / key_heads * probes, length]`, the clusters
            of each query.
        lists: the `Keys` of the clusters, `[batch, key_heads, clusters, members, ...]`.
        first: int like `query_clusters`, the number of the first member that a query sees.
        unused: int, the same for rows of tiles that compute no query.

    Returns:
        The `Staircase` and its `QueryBlocks`, whose windows are lists.
    """
    heads, length = query.shape[1], size(query, 2)
    batch, key_heads, num_clusters, window = sizes(lists.key)[:4]
    entries = size(query_clusters, 2) * length
    probes = size(query_clusters, 2) * key_heads // heads
    block_size = _block_size(entries, num_clusters, window)
    order = sort_by_cluster(query_clusters, num_clusters)
    # [batch, key_heads, entries]
    clusters = tf.gather(flatten_blocks(query_clusters), order.order, batch_dims=2)
    tiles = ceil_div(entries, block_size) + num_clusters - 1
    slices = slices_of_blocks(key_heads, batch * key_heads * tiles * block_size * window)
    stairs = staircase(clusters, order.order, order.rank, block_size, num_clusters, slices)
    first = stairs.of_sorted(tf.gather(flatten_blocks(first), order.order, batch_dims=2))
    sequence = tf.reshape(tf.range(batch * key_heads), [-1, key_heads, 1])
    return stairs, QueryBlocks(
        query=stairs.of_entries(fold_heads(tf.tile(query, [1, 1, probes, 1]), key_heads)),
        positions=split_blocks(stairs.entry % length, stairs.count, block_size),
        first=tf.where(stairs.here, first, unused),
        window=sequence * num_clusters + stairs.column,
    )


def _flatten_lists(x):
    """Joins the lists of all heads, `[batch * key_heads * clusters, members, ...]`."""
    return tf.reshape(x, [-1, *x.shape[3:]])


def _block_size(entries, num_clusters, window):
    """Returns the number of queries in a block: about as many as a cluster has."""
    most = block_size_of(window)
    if not isinstance(entries, int):
        return most
    return min(max(ceil_div(entries, num_clusters), MIN_BLOCK_SIZE), most)
