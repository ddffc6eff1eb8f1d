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
    QueryBlocks,
    attend_blocks,
    block_size_of,
    round_to_slices,
    sort_keys,
    split_windows,
)


def attend_separate(query, key, value, query_clusters, key_clusters, intervals, options):
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
        query_clusters: int `[batch, key_heads, heads / key_heads * probes, length]`, the clusters
            of each query.
        key_clusters: int `[batch, key_heads, 1, length]`, the cluster of each key.
        intervals: the ranks of the keys that each query attends to; see `key_intervals`.
        options: the `Options`; `window_size` is the maximum length of an interval.

    Returns:
        `[batch, heads, length, value_depth]`, and the logsumexp `[batch, heads, length]`.
    """
    heads, key_heads, length = query.shape[1], key.shape[1], size(query, 2)
    probes = size(query_clusters, 2) * key_heads // heads
    block_size = block_size_of(options.window_size)
    look_back = ceil_div(options.window_size, block_size)
    key_blocks = ceil_div(length, block_size)
    key_order = sort_by_cluster(key_clusters, options.num_clusters)
    order = sort_by_cluster(query_clusters, options.num_clusters)
    # [batch, key_heads, entries], an entry for each query, head and probe
    first, last = (tf.gather(x, order.order, batch_dims=2) for x in intervals)
    key_block = tf.maximum(last - 1, 0) // block_size
    stairs = staircase(key_block, order.order, order.rank, block_size, key_blocks, options.slices)
    keys, window = split_windows(
        sort_keys(key, value, key_order, options),
        stairs.column,
        key_blocks + look_back,
        block_size,
        look_back * block_size,
    )
    # The rank of the first key in the window of each tile.
    start = ((stairs.column - look_back) * block_size)[..., None]
    queries = QueryBlocks(
        query=stairs.of_entries(fold_heads(tf.tile(query, [1, 1, probes, 1]), key_heads)),
        positions=split_blocks(stairs.entry % length, stairs.count, block_size),
        first=stairs.of_sorted(first) - start,
        # A query that another tile computes has no keys here.
        last=tf.where(stairs.here, stairs.of_sorted(last) - start, 0),
        window=window,
    )
    if options.documents is not None:
        documents = tf.gather(options.documents, queries.positions, batch_dims=1)
        queries = queries._replace(query_documents=documents)
    if options.shifted:
        place = tf.gather(tf.tile(key_order.rank, [1, 1, probes]), stairs.entry, batch_dims=2)
        queries = queries._replace(excluded=split_blocks(place, stairs.count, block_size) - start)
    results = attend_blocks(queries, keys, look_back + 1, stairs.slices, options)
    return merge_probes(stairs, *results, heads, probes)


def merge_probes(stairs, output, logsumexp, heads, probes):
    """Merges the outputs of each query's probes, on the tiles of a staircase.

    Args:
        stairs: a `Staircase`.
        output: `[batch, key_heads, tiles, block_size, value_depth]`.
        logsumexp: `[batch, key_heads, tiles, block_size]`.
        heads: int, number of query heads.
        probes: int, number of clusters in which each query attends.

    Returns:
        `[batch, heads, length, value_depth]`, and the logsumexp `[batch, heads, length]`.
    """
    # [batch, heads, probes * length, ...]
    output, logsumexp = (fold_heads(stairs.of_rows(x), heads) for x in (output, logsumexp))
    length = size(output, 2) // probes
    if probes == 1:
        return output, logsumexp
    # [batch, heads, probes, length, ...]
    output, logsumexp = (split_blocks(x, probes, length) for x in (output, logsumexp))
    return merge(output, logsumexp, axis=2), tf.reduce_logsumexp(logsumexp, axis=2)


class Staircase(NamedTuple):
    """The tiles on which blocks of sorted queries meet columns of keys; see `staircase`."""

    column: tf.Tensor  # int [batch, heads, tiles], the column of each tile
    here: tf.Tensor  # bool [batch, heads, tiles, block_size], rows that this tile computes
    entry: tf.Tensor  # int [batch, heads, tiles * block_size], the query on each row
    row: tf.Tensor  # int [batch, heads, entries], the row that computes each query
    block: tf.Tensor  # int [batch, heads, tiles], the block of queries of each tile
    count: int  # number of tiles
    slices: int  # number of slices of tiles, which divides `count`
    block_size: int  # number of queries in a block

    def of_sorted(self, x):
        """Gathers `[batch, heads, entries]` in sorted order to `[batch, heads, tiles, queries]`."""
        blocks = ceil_div(size(x, 2), self.block_size)
        return tf.gather(split_blocks(x, blocks, self.block_size), self.block, batch_dims=2)

    def of_entries(self, x):
        """Gathers `[batch, heads, entries, depth]` to `[batch, heads, tiles, queries, depth]`.

        Unused rows of a tile see no keys, so no gradient passes through them.
        """
        return split_blocks(gather_rows(x, self.entry, self.row), self.count, self.block_size)

    def of_rows(self, x):
        """Gathers results of tiles to `[batch, heads, entries, ...]`."""
        return gather_rows(flatten_blocks(x), self.row, self.entry)


def staircase(column, order, rank, block_size, columns, slices):
    """Lays out the tiles on which blocks of sorted queries meet columns, one for each query.

    Along the sorted queries the column never decreases, so each pair of a block qb and a column c
    that occurs has the tile t = qb + c to itself.

    Args:
        column: int `[batch, heads, entries]`, the column of each sorted query.
        order: int `[batch, heads, entries]`, the query at each rank of the sorted order.
        rank: int `[batch, heads, entries]`, the rank of each query.
        block_size: int, number of queries in a block.
        columns: int, number of columns, which is above every column.
        slices: int, maximum number of slices of tiles.

    Returns:
        A `Staircase`.
    """
    entries = size(order, 2)
    blocks = ceil_div(entries, block_size)
    count, slices = round_to_slices(blocks + columns - 1, slices)
    # The tile of each query, [batch, heads, blocks, block_size].
    tile = split_blocks(column, blocks, block_size, fill=columns - 1)
    tile += tf.range(blocks)[:, None]
    # Blocks are consecutive, each starting at the tile of its first query.
    tiles = tf.range(count)
    begun = tf.cast(tile[:, :, None, :, 0] <= tiles[:, None], tf.int32)
    block = tf.maximum(tf.reduce_sum(begun, axis=-1) - 1, 0)  # [batch, heads, tiles]
    row = join_blocks(tile * block_size + tf.range(block_size), entries)
    # [batch, heads, tiles * block_size]
    ranks = flatten_blocks(block[..., None] * block_size + tf.range(block_size))
    here = tf.gather(tile, block, batch_dims=2) == tiles[:, None]
    return Staircase(
        column=tf.clip_by_value(tiles - block, 0, columns - 1),
        here=here & (split_blocks(ranks, count, block_size) < entries),
        entry=tf.gather(order, tf.minimum(ranks, entries - 1), batch_dims=2),
        row=tf.gather(row, rank, batch_dims=2),
        block=block,
        count=count,
        slices=slices,
        block_size=block_size,
    )


def key_intervals(query_clusters, key_clusters, options, inclusive):
    """Computes the ranks of the keys that each query attends to, `[first, last)`.

    Causal intervals end at the query's position, which is otherwise their middle.

    Args:
        query_clusters: int `[batch, heads, probes, length]`, the clusters of each query.
        key_clusters: int `[batch, heads, 1, length]`, the cluster of each key.
        options: the `Options`.
        inclusive: bool, whether the query's position comes before that end or middle.

    Returns:
        `first` and `last`, int32 `[batch, heads, probes * length]`. Neither decreases in the order
        of the sorted queries.
    """
    clusters, window_size = options.num_clusters, options.window_size
    middle, starts = rank_in_clusters(query_clusters, key_clusters, clusters + 1, inclusive)
    start, end = _ends_of_clusters(starts, query_clusters)
    last = middle if options.causal else tf.minimum(middle - window_size // 2 + window_size, end)
    first = middle - (window_size if options.causal else window_size // 2)
    return _without_padding(query_clusters, clusters, tf.maximum(first, start), last)


def intervals_around_blocks(query_clusters, key_clusters, options, block_size, look_back, after):
    """Computes intervals that end where a query's window of local attention begins.

    Args:
        query_clusters, key_clusters, options: see `key_intervals`.
        block_size, look_back: ints, the window; see `local_attention`.
        after: bool, whether the intervals begin where the window ends instead.

    Returns:
        `first` and `last`, as in `key_intervals`.
    """
    clusters, window_size = options.num_clusters, options.window_size
    block = look_back + 1 if after else -look_back
    border, starts = rank_at_blocks(query_clusters, key_clusters, clusters + 1, block_size, block)
    start, end = _ends_of_clusters(starts, query_clusters)
    if after:
        first, last = border, tf.minimum(border + window_size, end)
    else:
        first, last = tf.maximum(border - window_size, start), border
    return _without_padding(query_clusters, clusters, first, last)


def _ends_of_clusters(starts, clusters):
    """Returns the ranks of the first key of each query's cluster, and after its last one."""
    return (tf.gather(starts[:, :, 0, i:], clusters, batch_dims=2) for i in (0, 1))


def _without_padding(query_clusters, num_clusters, first, last):
    """Empties the intervals of padding, whose cluster is `num_clusters`."""
    first = tf.where(query_clusters < num_clusters, first, last)
    return flatten_blocks(first), flatten_blocks(last)
