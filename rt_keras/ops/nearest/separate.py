"""Nearest attention with separate queries and keys: tiles along a staircase."""

from typing import NamedTuple

import tensorflow as tf

from rt_keras.ops.attend import merge
from rt_keras.ops.blocks import (
    ceil_div,
    flatten_blocks,
    fold_heads,
    gather_rows,
    join_blocks,
    size,
    split_blocks,
)
from rt_keras.ops.nearest.assign import rank_at_blocks, rank_in_clusters, sort_by_cluster
from rt_keras.ops.nearest.shared import (
    attend_blocks,
    block_size_of,
    gathered_windows,
    round_to_chunks,
    sorted_keys,
)


def attend_tiles(query, key, value, of_queries, of_keys, intervals, options):
    """Computes attention of separate queries and keys, on tiles along a staircase.

    Keys and queries are sorted by (cluster, position) and cut into blocks. The keys of a query are
    an interval of at most window_size ranks among the sorted keys. It ends in a key block kb and so
    lies in kb and the few blocks before it. Along the sorted queries, neither their block qb nor kb
    decreases, so each pair (qb, kb) that occurs has the tile t = qb + kb to itself. Every query is
    computed on exactly one of the tiles, whose number is static.

    Args:
        query: `[batch, heads, length, depth]`, scaled.
        key, value: `[batch, key_heads, length, ...]`. Each key head serves heads / key_heads
            consecutive query heads.
        of_queries: int `[batch, key_heads, heads / key_heads * probes, length]`, the clusters of
            each query.
        of_keys: int `[batch, key_heads, 1, length]`, the cluster of each key.
        intervals: the indices of the sorted keys that each query attends to; see
            `key_intervals`.
        options: dictionary of the options of `attend_blocks`; "num_clusters", int; "window_size",
            int, the maximum length of an interval; "chunks", int, the maximum number of chunks of
            tiles; and "shifted", whether keys are the previous queries.

    Returns:
        `[batch, heads, length, value_depth]`, and with "return_logsumexp" the logsumexp
        `[batch, heads, length]`.
    """
    heads, key_heads, length = query.shape[1], key.shape[1], size(query, 2)
    num_clusters, window_size = options["num_clusters"], options["window_size"]
    probes = size(of_queries, 2) * key_heads // heads
    block_size = block_size_of(window_size)
    look_back = ceil_div(window_size, block_size)
    key_blocks = ceil_div(length, block_size)
    key_order, key_place, _ = sort_by_cluster(of_keys, num_clusters)
    query_order, query_place, _ = sort_by_cluster(of_queries, num_clusters)
    first, last = (tf.gather(x, query_order, batch_dims=2) for x in intervals)
    key_block = tf.maximum(last - 1, 0) // block_size
    stairs = staircase(
        key_block, query_order, query_place, block_size, key_blocks, options["chunks"]
    )
    per_block = {
        "query": stairs.of_entries(fold_heads(tf.tile(query, [1, 1, probes, 1]), key_heads)),
        "positions": split_blocks(stairs.entry % length, stairs.count, block_size),
        "key_block": stairs.column,
        "first": stairs.of_sorted(first),
        # A query that another tile computes has no keys here.
        "last": tf.where(stairs.here, stairs.of_sorted(last), 0),
    }
    if options.get("documents") is not None:
        of_queries = tf.gather(options["documents"], per_block["positions"], batch_dims=1)
        per_block["of_queries"] = of_queries
    if options["shifted"]:
        own = tf.gather(tf.tile(key_place, [1, 1, probes]), stairs.entry, batch_dims=2)
        per_block["own"] = split_blocks(own, stairs.count, block_size)
    count = look_back + 1
    of_keys, per_block["window"], windows = gathered_windows(
        sorted_keys(key, value, key_order, key_place, options),
        stairs.column,
        key_blocks + look_back,
        block_size,
        count,
        look_back * block_size,
    )

    def allowed(part, _):
        ranks = (part["key_block"][..., None] - look_back) * block_size
        ranks = (ranks + tf.range(count * block_size))[..., None, :]
        inside = (ranks >= part["first"][..., None]) & (ranks < part["last"][..., None])
        return inside & (ranks != part["own"][..., None]) if "own" in part else inside

    return_logsumexp = options["return_logsumexp"]
    options = {**options, "return_logsumexp": probes > 1 or return_logsumexp}
    found = attend_blocks(per_block, of_keys, windows, allowed, stairs.chunks, options)
    if not options["return_logsumexp"]:
        return fold_heads(stairs.of_rows(found), heads)
    return from_probes(stairs, *found, heads, probes, return_logsumexp)


def from_probes(stairs, output, logsumexp, heads, probes, return_logsumexp):
    """Merges the outputs of each query's probes, on the tiles of a staircase.

    Args:
        stairs: a `Staircase`.
        output: `[batch, key_heads, tiles, block_size, value_depth]`.
        logsumexp: `[batch, key_heads, tiles, block_size]`.
        heads: int, number of query heads.
        probes: int, number of clusters in which each query attends.
        return_logsumexp: bool, whether to also return the logsumexp of the logits.

    Returns:
        `[batch, heads, length, value_depth]`, and with `return_logsumexp` the logsumexp
        `[batch, heads, length]`.
    """
    output = fold_heads(stairs.of_rows(output), heads)
    logsumexp = fold_heads(stairs.of_rows(logsumexp[..., None]), heads)[..., 0]
    length = size(output, 2) // probes
    output, logsumexp = (split_blocks(x, probes, length) for x in (output, logsumexp))
    output = merge(output, logsumexp, axis=2)
    return (output, tf.reduce_logsumexp(logsumexp, axis=2)) if return_logsumexp else output


class Staircase(NamedTuple):
    """The tiles on which blocks of sorted queries meet columns of keys; see `staircase`.

    Attributes:
        column: int `[batch, heads, tiles]`, the column of each tile.
        here: bool `[batch, heads, tiles, block_size]`, True for queries of a tile's block that are
            computed on this tile.
        entry: int `[batch, heads, tiles * block_size]`, the query on each row of the tiles.
        row: int `[batch, heads, entries]`, the row that computes each query.
        block: int `[batch, heads, tiles]`, the block of queries of each tile.
        count: int, the number of tiles.
        chunks: int, the number of chunks of tiles, which divides `count`.
        block_size: int, number of queries in a block.
    """

    column: tf.Tensor
    here: tf.Tensor
    entry: tf.Tensor
    row: tf.Tensor
    block: tf.Tensor
    count: int
    chunks: int
    block_size: int

    def of_sorted(self, x):
        """Gathers the entries of each tile from `[batch, heads, entries]` in the sorted order."""
        blocks = ceil_div(size(x, 2), self.block_size)
        return tf.gather(split_blocks(x, blocks, self.block_size), self.block, batch_dims=2)

    def of_entries(self, x):
        """Gathers the rows of each tile from `[batch, heads, entries, depth]`.

        Unused rows of a tile see no keys, so no gradient passes through them.
        """
        return split_blocks(gather_rows(x, self.entry, self.row), self.count, self.block_size)

    def of_rows(self, x):
        """Gathers the results `[batch, heads, entries, depth]` from the rows of the tiles."""
        return gather_rows(flatten_blocks(x), self.row, self.entry)


def staircase(column, order, place, block_size, columns, chunks):
    """Lays out the tiles on which blocks of sorted queries meet columns, one for each query.

    Along the sorted queries the column never decreases, so each pair of a block qb and a column c
    that occurs has the tile t = qb + c to itself.

    Args:
        column: int `[batch, heads, entries]`, the column of each sorted query.
        order: int `[batch, heads, entries]`, the query at each index of the sorted order.
        place: int `[batch, heads, entries]`, the index of each query in the sorted order.
        block_size: int, number of queries in a block.
        columns: int, number of columns, which is above every column.
        chunks: int, maximum number of chunks of tiles.

    Returns:
        A `Staircase`.
    """
    entries = size(order, 2)
    blocks = ceil_div(entries, block_size)
    count, chunks = round_to_chunks(blocks + columns - 1, chunks)
    tile = split_blocks(column, blocks, block_size, fill=columns - 1)
    tile += tf.range(blocks)[:, None]
    # Blocks are consecutive, each starting at the tile of its first query.
    tiles = tf.range(count)
    begun = tf.cast(tile[:, :, None, :, 0] <= tiles[:, None], tf.int32)
    of_tile = tf.maximum(tf.reduce_sum(begun, axis=-1) - 1, 0)
    row = join_blocks(tile * block_size + tf.range(block_size), entries)
    sorted_place = flatten_blocks(of_tile[..., None] * block_size + tf.range(block_size))
    here = tf.gather(tile, of_tile, batch_dims=2) == tiles[:, None]
    return Staircase(
        column=tf.clip_by_value(tiles - of_tile, 0, columns - 1),
        here=here & (split_blocks(sorted_place, count, block_size) < entries),
        entry=tf.gather(order, tf.minimum(sorted_place, entries - 1), batch_dims=2),
        row=tf.gather(row, place, batch_dims=2),
        block=of_tile,
        count=count,
        chunks=chunks,
        block_size=block_size,
    )


def key_intervals(of_queries, of_keys, num_clusters, window_size, causal, inclusive):
    """Computes the indices of the sorted keys that each query attends to, `[first, last)`.

    Args:
        of_queries: int `[batch, heads, probes, length]`, the clusters of each query.
        of_keys: int `[batch, heads, 1, length]`, the cluster of each key.
        num_clusters: int, number of clusters.
        window_size: int, length of an interval, unless its cluster ends sooner.
        causal: bool, whether the interval ends at the query's position, which is else its middle.
        inclusive: bool, whether the query's position comes before that end or middle.

    Returns:
        `first` and `last`, int32 `[batch, heads, probes * length]`. Neither decreases in the order
        of the sorted queries.
    """
    middle, starts = rank_in_clusters(of_queries, of_keys, num_clusters + 1, inclusive)
    start, end = _ends_of_clusters(starts, of_queries)
    last = middle if causal else tf.minimum(middle - window_size // 2 + window_size, end)
    first = middle - (window_size if causal else window_size // 2)
    return _without_padding(of_queries, num_clusters, tf.maximum(first, start), last)


def intervals_around_blocks(
    of_queries, of_keys, num_clusters, window_size, block_size, look_back, after
):
    """Computes intervals that end where a query's window of local attention begins.

    Args:
        of_queries, of_keys, num_clusters, window_size: see `key_intervals`.
        block_size, look_back: ints, the window; see `local_attention`.
        after: bool, whether the intervals begin where the window ends instead.

    Returns:
        `first` and `last`, as in `key_intervals`.
    """
    block = look_back + 1 if after else -look_back
    border, starts = rank_at_blocks(of_queries, of_keys, num_clusters + 1, block_size, block)
    start, end = _ends_of_clusters(starts, of_queries)
    if after:
        first, last = border, tf.minimum(border + window_size, end)
    else:
        first, last = tf.maximum(border - window_size, start), border
    return _without_padding(of_queries, num_clusters, first, last)


def _ends_of_clusters(starts, clusters):
    """Returns the indices of the first key of each query's cluster, and after its last one."""
    return (tf.gather(starts[:, :, 0, i:], clusters, batch_dims=2) for i in (0, 1))


def _without_padding(of_queries, num_clusters, first, last):
    """Empties the intervals of padding, whose cluster is `num_clusters`."""
    first = tf.where(of_queries < num_clusters, first, last)
    return flatten_blocks(first), flatten_blocks(last)
