"""Nearest routing attention of several positions at a time, given the cache of those before."""

import tensorflow as tf

from rt_keras.ops.blocks import (
    fold_heads,
    pad_axis,
    places_of_rows,
    repeat_heads,
    size,
    take_places,
)
from rt_keras.ops.chunks import chunks_of_blocks
from rt_keras.ops.decode import with_bias
from rt_keras.ops.nearest import clusters_of
from rt_keras.ops.nearest_tiles import attend_tiles, key_intervals
from rt_keras.ops.nearest_windows import block_size_of
from rt_keras.ops.ranks import sort_by_cluster
from rt_keras.ops.routing import prepare


def nearest_piece(
    query,
    key,
    value,
    cache,
    position,
    centroids,
    *,
    num_probes=1,
    load_bias=None,
    count=None,
    token_bias=None,
    relative_embeddings=None,
    scale=None,
    normalize=True,
    dropout=0.0,
    seed=None,
    return_logsumexp=False,
    activation="softmax",
):
    """Causal `nearest_attention` of the positions of a piece, given those before it.

    The members that the clusters keep are put before the piece, those of each cluster in their
    order, and attention runs once over both: what a query sees are the last members of its cluster,
    wherever they are. Members stay in the cluster that they were put into, even if centroids have
    moved since.

    Args:
        query: `[batch, heads, length, depth]`, not normalised.
        key: `[batch, key_heads, length, depth]`, or None for the queries themselves; not used if
            the cache has the query of the position before, which then is the first key.
        value: `[batch, key_heads, length, value_depth]`.
        cache: the cache of `nearest_cache`, `nearest_step` or of the last piece.
        position: int scalar, the piece's first position; or int `[batch]`, that of each row.
        centroids: `[key_heads, clusters, depth]`.
        num_probes: int, clusters in which a query attends. Defaults to 1.
        load_bias: `[key_heads, clusters]`, or None for zeros.
        count: int scalar or `[batch]`, how many of the piece's positions count, the first ones;
            others are padding, whose outputs mean nothing. None, the default, for all.
        token_bias: `[batch, length]`, of the keys; or None.
        relative_embeddings: `[heads, 2 m + 1, depth]`; or None.
        scale: `[heads]`, see `nearest_attention`; or None.
        normalize: bool, as the cache was made. Defaults to True.
        dropout, seed: see `nearest_attention`.
        return_logsumexp: bool, whether to return the logsumexp of the logits too. Defaults to
            False.
        activation: see `nearest_attention`.

    Returns:
        `[batch, heads, length, value_depth]`, 0 for a query without keys, or the pair of it and the
        logsumexp `[batch, heads, length]`; and the cache with these positions in it.

    >>> from rt_keras.ops.nearest_decode import nearest_cache
    >>> x, centroids = tf.random.normal([1, 2, 50, 4]), tf.random.normal([2, 3, 4])
    >>> cache = nearest_cache(x, x, centroids, 30, window_size=8)
    >>> rest = x[:, :, 30:]
    >>> output, cache = nearest_piece(rest, rest, rest, cache, 30, centroids)
    >>> output.shape
    TensorShape([1, 2, 20, 4])
    """
    length, num_clusters = size(query, 2), centroids.shape[1]
    positions = places_of_rows(position, tf.range(length))
    are_keys = None if count is None else tf.range(length) < places_of_rows(count, 0)
    if "query" in cache:
        asked = tf.concat([tf.cast(cache["query"], query.dtype), query], axis=2)
        key = asked[:, :, :length]
        # Before the first position there is no query that could be its key.
        are_keys = positions > 0 if count is None else are_keys & (positions > 0)
    routed_query, routed_key = prepare(query, key)
    query, key = (routed_query, routed_key) if normalize else prepare(query, key, normalized=False)
    of_queries = clusters_of(routed_query, centroids, load_bias, None, num_probes)
    of_keys = clusters_of(routed_key, centroids, load_bias, are_keys, 1)

    kept, of_kept = _kept_members(cache, num_clusters)
    new = {"key": with_bias(key, token_bias), "value": repeat_heads(value, key.shape[1])}
    if "positions" in cache:
        new["positions"] = tf.broadcast_to(positions[:, None], tf.shape(of_keys[:, :, 0]))
    members = {
        name: tf.concat([kept[name], tf.cast(x, kept[name].dtype)], axis=2)
        for name, x in new.items()
    }
    of_members = tf.concat([of_kept, of_keys], axis=3)
    query *= query.shape[3] ** -0.5
    if scale is not None:
        query *= tf.cast(scale, query.dtype)[:, None, None]
    output = _attend_to_members(
        query,
        of_queries,
        members,
        of_members,
        position,
        num_clusters,
        size(cache["key"], 3),
        relative_embeddings,
        return_logsumexp,
        {"dropout": dropout, "seed": seed, "activation": activation},
    )
    cache = _last_members(cache, members, of_members, num_clusters)
    if "query" in cache:
        last = take_places(asked, places_of_rows(length if count is None else count, [0]))
        cache["query"] = tf.cast(last, cache["query"].dtype)
    return output, cache


def _attend_to_members(
    query,
    of_queries,
    members,
    of_members,
    position,
    num_clusters,
    window,
    relative_embeddings,
    return_logsumexp,
    options,
):
    """Attention of the last positions among some members, those of the piece.

    Args:
        query: `[batch, heads, length, depth]`, scaled.
        of_queries: int `[batch, heads, probes, length]`, their clusters.
        members: dictionary of "key", "value" and maybe "positions", `[batch, heads, members, ...]`,
            those of the piece last.
        of_members: int `[batch, heads, 1, members]`, their clusters.
        position: int scalar or `[batch]`, that of the first query.
        num_clusters: int.
        window: int, the most members that a query sees in a cluster.
        relative_embeddings, return_logsumexp: see `nearest_piece`.
        options: dictionary of its options that `attend_blocks` takes.
    """
    heads, before = query.shape[1], size(of_members, 3) - size(query, 2)
    places = None
    if relative_embeddings is not None:
        # Each head of queries has a table of its own, and so needs keys of its own.
        members = {name: repeat_heads(x, heads) for name, x in members.items()}
        of_members = repeat_heads(of_members, heads)
        # Those of the piece come right behind what is kept.
        places = members["positions"] - tf.reshape(position, [-1, 1, 1]) + before
    if members["key"].shape[3] > query.shape[3]:
        query = tf.concat([query, tf.ones_like(query[..., :1])], axis=3)
        if relative_embeddings is not None:
            relative_embeddings = pad_axis(relative_embeddings, 2, 0, 1)
    # What is kept has no queries.
    query = pad_axis(query, 2, before, 0)
    of_queries = pad_axis(of_queries, 3, before, 0, fill=num_clusters)
    logits = size(query, 0) * heads * size(query, 2) * size(of_queries, 2)
    logits *= 2 * (window + block_size_of(window))
    of_queries = fold_heads(of_queries, members["key"].shape[1])
    options = {
        **options,
        "relative_embeddings": relative_embeddings,
        "key_positions": places,
        "token_bias": None,
        "bound": None,
        "chunks": chunks_of_blocks(heads, logits),
        "shift_keys": False,
        "seen": None,
    }
    intervals = key_intervals(
        of_queries, of_members, num_clusters, window, causal=True, inclusive=True
    )
    found = attend_tiles(
        query,
        members["key"],
        members["value"],
        of_queries,
        of_members,
        intervals,
        num_clusters,
        window,
        return_logsumexp,
        options,
    )
    return tf.nest.map_structure(lambda x: x[:, :, before:], found)


def _kept_members(cache, num_clusters):
    """The members of all rings, one ring after the other, each from its oldest member on.

    Returns:
        Dictionary of "key", "value" and maybe "positions", `[batch, heads, members, ...]`; and
        their clusters, int `[batch, heads, 1, members]`, `num_clusters` for places without one.
    """
    window, counts = size(cache["key"], 3), cache["counts"][..., None]
    places = tf.range(window)
    order = (tf.maximum(counts - window, 0) + places) % window
    clusters = tf.where(places < counts, tf.range(num_clusters)[:, None], num_clusters)

    def flat(x):
        shape = [size(x, axis) for axis in range(x.shape.rank)]
        return tf.reshape(x, [*shape[:2], shape[2] * shape[3], *shape[4:]])

    names = [name for name in ("key", "value", "positions") if name in cache]
    kept = {name: flat(tf.gather(cache[name], order, batch_dims=3)) for name in names}
    return kept, flat(clusters)[:, :, None]


def _last_members(cache, members, of_members, num_clusters):
    """The cache whose rings hold the last of some members.

    Args:
        cache: the cache before.
        members: dictionary of `[batch, heads, members, ...]`, those of the cache first.
        of_members: int `[batch, heads, 1, members]`, their clusters.
        num_clusters: int.
    """
    window = size(cache["key"], 3)
    order, _, starts = sort_by_cluster(of_members, num_clusters)
    starts, ends = starts[..., :-2], starts[..., 1:-1]
    listed = ends - starts
    counts = cache["counts"] + listed - tf.minimum(cache["counts"], window)
    # The r-th member of a cluster is at place r modulo the ring's length.
    last = counts[..., None] - 1
    number = last - (last - tf.range(window)) % window
    rank = tf.maximum(number - (counts - listed)[..., None], 0) + starts[..., None]
    rank = tf.minimum(rank, size(order, 2) - 1)
    shape = [size(rank, axis) for axis in range(4)]
    held = tf.gather(order, tf.reshape(rank, [*shape[:2], shape[2] * shape[3]]), batch_dims=2)

    def ring(x):
        x = tf.gather(x, held, batch_dims=2)
        return tf.reshape(x, [*shape, *x.shape[3:]])

    return {**cache, **{name: ring(x) for name, x in members.items()}, "counts": counts}
