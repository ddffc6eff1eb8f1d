"""Nearest attention with separate queries and keys: tiles along a staircase."""

import tensorflow as tf

from rt_keras.ops.attend import merge
from rt_keras.ops.blocks import ceil_div, fold_heads, gather_rows, join_blocks, size, split_blocks
from rt_keras.ops.nearest_windows import (
    attend_blocks,
    block_size_of,
    flatten_blocks,
    gathered_windows,
    round_to_chunks,
    sorted_keys,
)
from rt_keras.ops.ranks import rank_at_blocks, rank_in_clusters, sort_by_cluster


def attend_tiles(
    query,
    key,
    value,
    of_queries,
    of_keys,
    intervals,
    num_clusters,
    window_size,
    return_logsumexp,
    options,
):
    """Separate queries and keys: blocks of both sorted lists, met along a staircase.

    Keys and queries are sorted by (cluster, position) and cut into blocks. A query's keys are an
    interval of at most window_size ranks among the sorted keys, which ends in a key block kb and
    so lies in kb and the few blocks before it. Along the sorted queries neither their block qb
    nor kb falls, so each pair (qb, kb) that occurs has the tile t = qb + kb to itself: every query
    is computed on exactly one of the tiles, whose number is static.

    Args:
        query: `[batch, heads, length, depth]`, scaled.
        key, value: `[batch, key_heads, length, ...]`, each head of which serves as many consecutive
            heads of queries.
        of_queries: int `[batch, key_heads, heads / key_heads * probes, length]`, the clusters of
            each query.
        of_keys: int `[batch, key_heads, 1, length]`, that of each key.
        intervals: the places among the sorted keys that each query attends to; see
            `key_intervals`.
        num_clusters: int.
        window_size: int, the length of the longest interval.
        return_logsumexp: bool, whether to return the logsumexp of the logits too.
        options: dictionary of the options that `attend_blocks` takes.

    Returns:
        `[batch, heads, length, value_depth]`, and with `return_logsumexp` `[batch, heads, length]`.
    """
    heads, key_heads, length = query.shape[1], key.shape[1], size(query, 2)
    lists = size(of_queries, 2)
    entries, probes = lists * length, lists * key_heads // heads
    block_size = block_size_of(window_size)
    look_back = ceil_div(window_size, block_size)
    query_blocks, key_blocks = ceil_div(entries, block_size), ceil_div(length, block_size)
    num_tiles, chunks = round_to_chunks(query_blocks + key_blocks - 1, options["chunks"])
    key_order, key_place, _ = sort_by_cluster(of_keys, num_clusters)
    query_order, query_place, _ = sort_by_cluster(of_queries, num_clusters)

    # The interval and the tile of each sorted query.
    first, last = (tf.gather(x, query_order, batch_dims=2) for x in intervals)
    key_block = tf.maximum(last - 1, 0) // block_size
    first, last = (split_blocks(x, query_blocks, block_size) for x in (first, last))
    key_block = split_blocks(key_block, query_blocks, block_size, fill=key_blocks - 1)
    tile = key_block + tf.range(query_blocks)[:, None]

    # The query block and the key block of each tile: query blocks follow one another, each from
    # the tile of its first query on.
    tiles = tf.range(num_tiles)
    begun = tf.cast(tile[:, :, None, :, 0] <= tiles[:, None], tf.int32)
    of_tile = tf.maximum(tf.reduce_sum(begun, axis=-1) - 1, 0)
    key_of_tile = tf.clip_by_value(tiles - of_tile, 0, key_blocks - 1)

    # For each entry the row of the tiles that computes it, and for each row its entry. A row
    # that computes nothing has no keys, so no gradient passes through it.
    row = join_blocks(tile * block_size + tf.range(block_size), entries)
    row = tf.gather(row, query_place, batch_dims=2)
    place = flatten_blocks(of_tile[..., None] * block_size + tf.range(block_size))
    entry = tf.gather(query_order, tf.minimum(place, entries - 1), batch_dims=2)

    query = fold_heads(tf.tile(query, [1, 1, probes, 1]), key_heads)
    query = gather_rows(query, entry, row)
    per_block = {
        "query": split_blocks(query, num_tiles, block_size),
        "positions": split_blocks(entry % length, num_tiles, block_size),
        "key_block": key_of_tile,
    }
    if options["shift_keys"]:
        own = tf.gather(tf.tile(key_place, [1, 1, probes]), entry, batch_dims=2)
        per_block["own"] = split_blocks(own, num_tiles, block_size)
    # Those of a query that another tile computes: none.
    here = tf.gather(tile, of_tile, batch_dims=2) == tiles[:, None]
    per_block["first"] = tf.gather(first, of_tile, batch_dims=2)
    per_block["last"] = tf.where(here, tf.gather(last, of_tile, batch_dims=2), 0)
    count = look_back + 1
    of_keys, per_block["window"], windows = gathered_windows(
        sorted_keys(key, value, key_order, key_place, options),
        key_of_tile,
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

    with_logsumexp = probes > 1 or return_logsumexp
    found = attend_blocks(per_block, of_keys, windows, allowed, chunks, with_logsumexp, options)
    if not with_logsumexp:
        return fold_heads(gather_rows(flatten_blocks(found), row, entry), heads)
    output, logsumexp = found
    output = fold_heads(gather_rows(flatten_blocks(output), row, entry), heads)
    logsumexp = gather_rows(flatten_blocks(logsumexp)[..., None], row, entry)
    logsumexp = fold_heads(logsumexp, heads)[..., 0]
    output, logsumexp = (split_blocks(x, probes, length) for x in (output, logsumexp))
    output = merge(output, logsumexp, axis=2)
    return (output, tf.reduce_logsumexp(logsumexp, axis=2)) if return_logsumexp else output


def key_intervals(of_queries, of_keys, num_clusters, window_size, causal, inclusive):
    """Places among the sorted keys that each query attends to, `[first, last)`.

    Args:
        of_queries: int `[batch, heads, probes, length]`, the clusters of each query.
        of_keys: int `[batch, heads, 1, length]`, that of each key.
        num_clusters: int.
        window_size: int, the length of an interval, unless its cluster ends sooner.
        causal: bool, whether it ends at the query's own position; else that is its middle.
        inclusive: bool, whether the own position comes before that end, or middle.

    Returns:
        Two int32 `[batch, heads, probes * length]`. In the order of the sorted queries neither
        falls.
    """
    middle, starts = rank_in_clusters(of_queries, of_keys, num_clusters + 1, inclusive)
    start, end = _ends_of_clusters(starts, of_queries)
    last = middle if causal else tf.minimum(middle - window_size // 2 + window_size, end)
    first = middle - (window_size if causal else window_size // 2)
    return _without_padding(of_queries, num_clusters, tf.maximum(first, start), last)


def intervals_around_blocks(
    of_queries, of_keys, num_clusters, window_size, block_size, look_back, after
):
    """`key_intervals` that end where a query's window of local attention begins.

    Args:
        of_queries, of_keys, num_clusters, window_size: see `key_intervals`.
        block_size, look_back: the window; see `local_attention`.
        after: bool, whether the intervals begin where the window ends instead.
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
    """The places of the first key of each cluster, and behind its last one."""
    return (tf.gather(starts[:, :, 0, i:], clusters, batch_dims=2) for i in (0, 1))


def _without_padding(of_queries, num_clusters, first, last):
    """Intervals of which those of padding, which has the cluster behind the last, are empty."""
    first = tf.where(of_queries < num_clusters, first, last)
    return flatten_blocks(first), flatten_blocks(last)
