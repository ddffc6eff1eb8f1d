"""Nearest routing attention of a chunk of positions, given the cache of earlier ones."""

import tensorflow as tf

from rt_keras.ops.attend import merge_sets
from rt_keras.ops.blocks import (
    fold_heads,
    pad_axis,
    places_of_rows,
    repeat_heads,
    size,
    take_places,
)
from rt_keras.ops.nearest_sorted import attend_sorted
from rt_keras.ops.nearest_tiles import attend_tiles, key_intervals
from rt_keras.ops.nearest_windows import block_size_of
from rt_keras.ops.rings import add_members, attend_to_rings
from rt_keras.ops.routed import Routing
from rt_keras.ops.slices import slices_of_blocks


def nearest_chunk(
    query,
    key,
    value,
    cache,
    position,
    centroids,
    *,
    count=None,
    relative_embeddings=None,
    dropout=0.0,
    seed=None,
    return_logsumexp=False,
    **routing,
):
    """Computes causal `nearest_attention` of a chunk, given the cache of earlier positions.

    A query sees the last members of its cluster, both in the chunk and in the ring buffer of the
    cluster, under one softmax. Members stay in the cluster that they were added to, even if
    centroids have moved since.

    Args:
        query: `[batch, heads, length, depth]`, not normalized.
        key: `[batch, key_heads, length, depth]`, or None for the queries themselves. Not used if
            the cache has the query of the previous position, which is then the first key.
        value: `[batch, key_heads, length, value_depth]`.
        cache: the cache of `nearest_cache`, `nearest_step` or of the last chunk.
        position: int scalar, the chunk's first position; or int `[batch]`, one for each row.
        centroids: `[key_heads, clusters, depth]`.
        count: int scalar or `[batch]`, number of the chunk's positions that are not padding, the
            first ones. Outputs of padding are undefined. Defaults to None, for no padding.
        relative_embeddings: `[heads, 2 m + 1, depth]`; or None.
        dropout, seed: see `nearest_attention`.
        return_logsumexp: bool, whether to also return the logsumexp of the logits. Defaults to
            False.
        **routing: `num_probes`, `load_bias`, `scale` and `use_query_key_norm` of `Routing`. The
            last must be that of the cache.

    Returns:
        `[batch, heads, length, value_depth]`, 0 for a query without keys, or a pair of it and the
        logsumexp `[batch, heads, length]`; and the cache with these positions added.

    >>> from rt_keras.ops.nearest_decode import nearest_cache
    >>> x, centroids = tf.random.normal([1, 2, 50, 4]), tf.random.normal([2, 3, 4])
    >>> cache = nearest_cache(x, x, centroids, 30, window_size=8)
    >>> rest = x[:, :, 30:]
    >>> output, cache = nearest_chunk(rest, rest, rest, cache, 30, centroids)
    >>> output.shape
    TensorShape([1, 2, 20, 4])
    """
    length, num_clusters = size(query, 2), centroids.shape[1]
    routing = Routing(centroids, **routing)
    positions = places_of_rows(position, tf.range(length))
    are_keys = None if count is None else tf.range(length) < places_of_rows(count, 0)
    shifted = "query" in cache
    if shifted:
        asked = tf.concat([tf.cast(cache["query"], query.dtype), query], axis=2)
        query, key = asked, None
        # Before the first position there is no query that could be its key.
        are_keys = positions > 0 if count is None else are_keys & (positions > 0)
    are_one_list = key is None
    query, key, of_queries, of_keys = routing.route(query, key)
    if shifted:
        query, of_queries = query[:, :, 1:], of_queries[..., 1:]
        key, of_keys = key[:, :, :length], of_keys[..., :length]
    if are_keys is not None:
        of_keys = tf.where(are_keys[:, None, None], of_keys, num_clusters)

    new = {"key": key, "value": repeat_heads(value, key.shape[1])}
    if "positions" in cache:
        new["positions"] = tf.broadcast_to(positions[:, None], tf.shape(of_keys[:, :, 0]))
    query = routing.scaled(query)
    options = {
        "num_clusters": num_clusters,
        "window_size": size(cache["key"], 3),
        "causal": True,
        "return_logsumexp": True,
        "relative_embeddings": relative_embeddings,
        "dropout": dropout,
        "seed": seed,
        "shifted": shifted,
    }
    attend_own = _attend_list if are_one_list and routing.num_probes == 1 else _attend_tiles
    found = _attend(query, of_queries, new, of_keys, cache, position, attend_own, options)
    output = merge_sets(*found, return_logsumexp=return_logsumexp)
    members = {name: tf.cast(x, cache[name].dtype) for name, x in new.items()}
    cache = add_members(cache, members, of_keys, num_clusters)
    if shifted:
        last = take_places(asked, places_of_rows(length if count is None else count, [0]))
        cache["query"] = tf.cast(last, cache["query"].dtype)
    return output, cache


def _attend(query, of_queries, new, of_keys, cache, position, attend_own, options):
    """Computes attention of a chunk to its own members and to earlier ones.

    Args:
        query: `[batch, heads, length, depth]`, scaled.
        of_queries: int `[batch, heads, probes, length]`, the clusters of the queries.
        new: dictionary of "key" and "value", `[batch, key_heads, length, ...]`, of the chunk.
        of_keys: int `[batch, key_heads, 1, length]`, the clusters of these keys.
        cache: the rings of earlier members.
        position: int scalar or `[batch]`, the position of the first query.
        attend_own: `_attend_list` or `_attend_tiles`, which attends to members of the chunk.
        options: dictionary of the options that `attend_sorted` takes, without "chunks".

    Returns:
        Two pairs of an output and the logsumexp of its logits.
    """
    heads = query.shape[1]
    rings = {name: cache[name] for name in ("key", "value", "counts", "positions") if name in cache}
    relative = options["relative_embeddings"]
    if relative is not None:
        # Each query head has its own table of embeddings, and so needs its own keys.
        rings, new = ({name: repeat_heads(x, heads) for name, x in y.items()} for y in (rings, new))
        of_keys = repeat_heads(of_keys, heads)
        rings["positions"] -= tf.reshape(position, [-1, 1, 1, 1])
    of_queries = fold_heads(of_queries, new["key"].shape[1])
    seeds = (
        [None, None] if options["seed"] is None else tf.unstack(tf.random.split(options["seed"], 2))
    )
    return (
        attend_own(query, new, of_queries, of_keys, {**options, "seed": seeds[0]}),
        attend_to_rings(query, of_queries, rings, of_keys, {**options, "seed": seeds[1]}),
    )


def _attend_list(query, new, of_queries, of_keys, options):
    """Computes attention of queries that are the keys of the same or the next position."""
    key, value = new["key"], new["value"]
    if options["shifted"]:
        # The first entry has a key but no query of the chunk, and the last a query but no key.
        query = pad_axis(query, 2, 1, 0)
        key, value = (pad_axis(x, 2, 0, 1) for x in (key, value))
        of_queries = tf.concat([of_keys[..., :1], of_queries], axis=3)
    found = attend_sorted(query, key, value, of_queries, _chunked(query, of_queries, options))
    return tuple(x[:, :, 1:] for x in found) if options["shifted"] else found


def _attend_tiles(query, new, of_queries, of_keys, options):
    """Computes attention of queries to the keys of the chunk up to their own position."""
    sizes = options["num_clusters"], options["window_size"]
    intervals = key_intervals(of_queries, of_keys, *sizes, causal=True, inclusive=True)
    options = {**_chunked(query, of_queries, options), "shifted": False}
    return attend_tiles(query, new["key"], new["value"], of_queries, of_keys, intervals, options)


def _chunked(query, of_queries, options):
    """Adds "chunks", the number of chunks of blocks, to the options."""
    heads, window = query.shape[1], options["window_size"]
    logits = size(query, 0) * heads * size(query, 2) * size(of_queries, 2)
    chunks = slices_of_blocks(heads, 2 * logits * (window + block_size_of(window)))
    return {**options, "chunks": chunks}
