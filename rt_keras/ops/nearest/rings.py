"""Nearest routing attention of a chunk of positions, given the cache of earlier ones."""

import tensorflow as tf

from rt_keras.ops.attend import attend_step, merge_sets
from rt_keras.ops.blocks import (
    ceil_div,
    flatten_blocks,
    fold_heads,
    pad_axis,
    places_of_rows,
    repeat_heads,
    shift_left,
    size,
    sizes,
    smaller,
    split_blocks,
    take_places,
)
from rt_keras.ops.caches import like, put_rows, where_counted
from rt_keras.ops.nearest.assign import Routing, rank_in_clusters, shifts_keys, sort_by_cluster
from rt_keras.ops.nearest.separate import attend_tiles, from_probes, key_intervals, staircase
from rt_keras.ops.nearest.shared import attend_blocks, attend_sorted, block_size_of
from rt_keras.ops.slices import over_blocks, slices_of_blocks


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

    >>> from rt_keras.ops.nearest.rings import nearest_cache
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


def nearest_cache(
    key,
    value,
    centroids,
    count,
    *,
    window_size,
    max_length=None,
    routed_key="key",
    keep_positions=False,
    **routing,
):
    """Builds the cache of `nearest_step`: a ring buffer of the last members of each cluster.

    Args:
        key: `[batch, heads, length, depth]`, not normalized, from the first position; the queries
            if these are shared.
        value: `[batch, key_heads, length, value_depth]`. With `routed_key` "previous_query",
            key_heads may be less than heads; see grouped-query attention in `nearest_attention`.
        centroids: `[key_heads, clusters, depth]`.
        count: int scalar, number of positions in the cache, the first ones; others are padding.
        window_size: int, maximum number of keys that a query attends to in one cluster.
        max_length: int, maximum length of the sequence, which also bounds the rings. Defaults to
            None, for no maximum.
        routed_key: "key", or "previous_query" with the queries as `key`, such that the key of
            position j is the query of position j - 1. Defaults to "key".
        keep_positions: bool, whether to store positions, which relative embeddings and `before`
            need in steps. Defaults to False.
        **routing: see `nearest_step`; `num_probes` and `scale` have no effect.

    Returns:
        A dictionary of "key" and "value", `[batch, heads, clusters, window, ...]`, with normalized
        keys unless `use_query_key_norm` is False; "counts", int `[batch, heads, clusters]`, the
        number of members added so far; with `keep_positions`, "positions", int
        `[batch, heads, clusters, window]`; and with `routed_key` "previous_query",
        "query", `[batch, heads, 1, depth]`, the key of the next position. See `add_members` for the
        order of members.

    >>> x = tf.random.normal([1, 2, 50, 4])
    >>> nearest_cache(x, x, tf.random.normal([2, 3, 4]), 50, window_size=8)["key"].shape
    TensorShape([1, 2, 3, 8, 4])
    """
    batch, heads, length, _ = sizes(key)
    value, clusters = repeat_heads(value, heads), centroids.shape[1]
    window = window_size if max_length is None else smaller(window_size, max_length)
    shifted = shifts_keys(routed_key)
    if shifted:
        key, value = (tf.convert_to_tensor(x) for x in (key, value))
        # The last query is the key of the next position; zeros if there is none.
        next_key = tf.gather(pad_axis(key, 2, 1, 0), [count], axis=2)
        value, count = shift_left(value, 2), count - 1
    real = (tf.range(length) < count)[None]
    _, key, _, of_keys = Routing(centroids, **routing).route(key, None, real, real)
    members = {"key": key, "value": value}
    if keep_positions:
        positions = tf.range(length) + int(shifted)
        members["positions"] = tf.broadcast_to(positions, [batch, heads, length])
    rings = {
        name: tf.zeros([batch, heads, clusters, window, *x.shape[3:]], x.dtype)
        for name, x in members.items()
    }
    rings["counts"] = tf.zeros([batch, heads, clusters], tf.int32)
    cache = add_members(rings, members, of_keys, clusters)
    return {**cache, "query": next_key} if shifted else cache


def nearest_step(
    query,
    key,
    value,
    cache,
    position,
    centroids,
    *,
    window_size=None,
    before=None,
    count=None,
    relative_embeddings=None,
    return_logsumexp=False,
    **routing,
):
    """Computes causal `nearest_attention` of one position, given the cache of earlier ones.

    Args:
        query: `[batch, heads, 1, depth]`, not normalized.
        key: `[batch, key_heads, 1, depth]`, or None for the query itself. Not used if the cache has
            the query of the previous position, which is then the key.
        value: `[batch, key_heads, 1, value_depth]`.
        cache: the cache of `nearest_cache` or of the last step.
        position: int scalar, the query's position; or int `[batch]`, one for each row.
        centroids: `[key_heads, clusters, depth]`.
        window_size: int, only needed with `before`.
        before: int scalar or `[batch]`, to see only the last `window_size` members of each cluster
            before this position. The cache must have positions, and be long enough to hold these
            members besides all later ones. Defaults to None, to see all members in the cache.
        count: int `[batch]`, 0 for rows whose position is padding: their cache is unchanged, and
            their outputs are undefined. Defaults to None, for no padding.
        return_logsumexp: see `nearest_attention`.
        relative_embeddings: `[heads, 2 m + 1, depth]`; or None.
        **routing: `num_probes`, `load_bias`, `scale` and `use_query_key_norm` of `Routing`. The
            last must be that of the cache.

    Returns:
        `[batch, heads, 1, value_depth]`, 0 for a query without keys, or a pair of it and the
        logsumexp `[batch, heads, 1]`; and the cache with this position added.

    >>> x, centroids = tf.random.normal([1, 2, 50, 4]), tf.random.normal([2, 3, 4])
    >>> cache = nearest_cache(x, x, centroids, 49, window_size=8)
    >>> last = x[:, :, 49:]
    >>> output, cache = nearest_step(last, last, last, cache, 49, centroids)
    >>> output.shape
    TensorShape([1, 2, 1, 4])
    """
    asked, key = query, cache.get("query", key)
    position = tf.convert_to_tensor(position)
    routing = Routing(centroids, **routing)
    query, key, sought, own = routing.route(query, key)
    sought, value = sought[..., 0], repeat_heads(value, key.shape[1])
    cache = _add(cache, own[:, :, 0], key, value, position, count)
    if "query" in cache:
        asked = tf.cast(asked, cache["query"].dtype)
        cache["query"] = where_counted(count, asked, cache["query"])

    # The clusters that the queries of each cached head attend to.
    of_kept = fold_heads(sought[..., None], key.shape[1])[..., 0]

    def of_sought(x):
        """Gathers the entries of the queries' clusters, `[batch, heads, probes, ...]`."""
        x = tf.gather(x, of_kept, batch_dims=2)
        return tf.reshape(x, [*sizes(sought), *sizes(x)[3:]])

    def members(x):
        """Joins the rings of the queries' clusters, one after the other."""
        return flatten_blocks(of_sought(x))

    counts = of_sought(cache["counts"])[..., None]
    positions = members(cache["positions"]) if "positions" in cache else None
    places = tf.range(size(cache["key"], 3))
    if before is None:
        allowed = places < counts
    else:
        # The number in the cluster of the member in each slot.
        number = counts - 1 - (counts - 1 - places) % size(places, 0)
        in_reach = tf.reshape(positions, tf.shape(number)) < tf.reshape(before, [-1, 1, 1, 1])
        later = tf.cast((number >= 0) & ~in_reach, tf.int32)
        end = counts - tf.reduce_sum(later, axis=-1, keepdims=True)
        allowed = (number >= tf.maximum(end - window_size, 0)) & (number < end)
    if routing.scale is not None:
        query *= tf.cast(routing.scale, query.dtype)[:, None, None]
    output = attend_step(
        query,
        members(cache["key"]),
        members(cache["value"]),
        flatten_blocks(allowed)[:, :, None],
        None if relative_embeddings is None else tf.reshape(position, [-1, 1, 1]) - positions,
        relative_embeddings=relative_embeddings,
        return_logsumexp=return_logsumexp,
    )
    return output, cache


def _add(cache, cluster, key, value, position, count):
    """Adds a member of a cluster `[batch, heads, 1]` to the cache, replacing the oldest one.

    Rows where `count` is 0 are unchanged.
    """
    batch, heads, clusters, window = (size(cache["key"], axis) for axis in range(4))
    cluster = cluster[:, :, 0]
    place = tf.gather(cache["counts"], cluster, batch_dims=2) % window

    def put(kept, new):
        flat = flatten_blocks(kept)
        return split_rings(put_rows(flat, cluster * window + place, new, count))

    def split_rings(x):
        return tf.reshape(x, [batch, heads, clusters, window, *x.shape[3:]])

    added = {**cache, "key": put(cache["key"], key), "value": put(cache["value"], value)}
    arrived = tf.one_hot(cluster, clusters, dtype=tf.int32)
    if "query" in cache:
        # Before the first position there is no query that could be its key.
        arrived *= tf.reshape(tf.cast(position > 0, tf.int32), [-1, 1, 1])
    added["counts"] = where_counted(count, cache["counts"] + arrived, cache["counts"])
    if "positions" in cache:
        now = tf.broadcast_to(tf.reshape(position, [-1, 1, 1]), [batch, heads, 1])
        added["positions"] = put(cache["positions"], now)
    return like(added, cache)


# Minimum number of queries in a block, below which small matrices waste time.
MIN_BLOCK_SIZE = 8


def add_members(rings, members, of_members, num_clusters):
    """Adds members to rings, replacing the oldest ones.

    The r-th member of a cluster is in slot r modulo the ring's length.

    Args:
        rings: dictionary of "counts", int `[batch, heads, clusters]`, the number of members added
            so far, and of tensors `[batch, heads, clusters, window, ...]`. Other entries are kept.
        members: dictionary of `[batch, heads, length, ...]`, for each of those tensors.
        of_members: int `[batch, heads, 1, length]`, the clusters of the members; `num_clusters` for
            those in none.
        num_clusters: int, number of clusters.

    Returns:
        The updated dictionary.
    """
    window = size(rings["key"], 3)
    order, _, starts = sort_by_cluster(of_members, num_clusters)
    starts, ends = starts[..., :-2], starts[..., 1:-1]
    counts = rings["counts"] + ends - starts
    number = numbers_of_places(counts, window)
    added = number - rings["counts"][..., None]
    place = tf.clip_by_value(added + starts[..., None], 0, size(order, 2) - 1)
    shape = sizes(place)
    held = tf.gather(order, flatten_blocks(place), batch_dims=2)

    def ring(kept, new):
        new = tf.gather(tf.cast(new, kept.dtype), held, batch_dims=2)
        new = tf.reshape(new, [*shape, *new.shape[3:]])
        is_new = tf.reshape(added >= 0, [*shape, *[1] * (new.shape.rank - 4)])
        return tf.where(is_new, new, kept)

    changed = {name: ring(rings[name], x) for name, x in members.items()}
    return {**rings, **changed, "counts": counts}


def numbers_of_places(counts, window):
    """Returns the number of the member in each slot of a ring, negative for empty slots.

    Args:
        counts: int `[...]`, the number of members added so far.
        window: int, length of a ring.

    Returns:
        int `[..., window]`.

    >>> numbers_of_places(tf.constant([2, 5]), 3).numpy().tolist()
    [[0, 1, -1], [3, 4, 2]]
    """
    last = counts[..., None] - 1
    return last - (last - tf.range(window)) % window


def attend_to_rings(query, of_queries, rings, of_keys, options):
    """Computes attention of the queries of a chunk to the members in the rings.

    A query sees as many of the last members of its clusters as a ring is long. Members of the chunk
    up to its own position count first; attention to them is computed elsewhere.

    Args:
        query: `[batch, heads, length, depth]`, scaled.
        of_queries: int `[batch, key_heads, heads / key_heads * probes, length]`, the clusters of
            each query.
        rings: dictionary of "key" and "value", `[batch, key_heads, clusters, window, ...]`,
            "counts", and optionally "positions", relative to the start of the chunk.
        of_keys: int `[batch, key_heads, 1, length]`, the clusters of the chunk's members.
        options: dictionary of the options of `attend_blocks`.

    Returns:
        `[batch, heads, length, value_depth]`, and the logsumexp of the logits,
        `[batch, heads, length]`.
    """
    # The number of the first member that a query sees.
    counts = counts_at(rings["counts"], of_queries, of_keys)
    first = tf.maximum(counts - size(rings["key"], 3), 0)
    lists = {name: rings[name] for name in ("key", "value", "positions") if name in rings}
    lists["number"] = numbers_of_places(rings["counts"], size(rings["key"], 3))
    stairs, per_block, lists = _on_tiles(query, of_queries, lists, first, tf.int32.max)

    def allowed(part, cut):
        return cut["number"][..., None, :] >= part["border"][..., None]

    options = {**options, "return_logsumexp": True}
    found = attend_blocks(per_block, lists, _cut, allowed, stairs.chunks, options)
    heads, key_heads = query.shape[1], size(of_queries, 1)
    return from_probes(stairs, *found, heads, size(of_queries, 2) * key_heads // heads, True)


def counts_at(counts, of_queries, of_keys):
    """Counts the members of the clusters of each query, up to its own position.

    Args:
        counts: int `[batch, key_heads, clusters]`, the number of members before the chunk.
        of_queries: int `[batch, key_heads, lists, length]`, the clusters of each query.
        of_keys: int `[batch, key_heads, 1, length]`, the clusters of the chunk's members.

    Returns:
        int `[batch, key_heads, lists, length]`.
    """
    rank, starts = rank_in_clusters(of_queries, of_keys, size(counts, 2) + 1, inclusive=True)
    rank -= tf.gather(starts[:, :, 0], of_queries, batch_dims=2)
    return rank + tf.gather(counts, of_queries, batch_dims=2)


def of_lists(function, query, of_queries, lists, border, none, dtypes):
    """Applies a function to queries and the lists of their clusters.

    Args:
        function: function of a dictionary of tiles, with "query", `[batch, heads, tiles, queries,
            depth]`, and "border", `[batch, heads, tiles, queries]`, and of a dictionary of their
            lists, `[batch, heads, tiles, members, ...]`. It returns
            `[batch, heads, tiles, queries, found]`, or a tuple of such tensors.
        query, of_queries, lists, border, none: see `_on_tiles`; here each head has its own keys.
        dtypes: the dtypes of the function's results.

    Returns:
        `[batch, heads, probes, length, found]`, or a tuple of such tensors.
    """
    stairs, per_block, lists = _on_tiles(query, of_queries, lists, border, none)

    def of_tiles(part):
        return function(part, {name: _cut(part[name], part) for name in lists})

    found = over_blocks(of_tiles, per_block, lists, stairs.chunks, dtypes)
    probes, length = size(of_queries, 2), size(of_queries, 3)
    return tf.nest.map_structure(lambda x: split_blocks(stairs.of_rows(x), probes, length), found)


def _on_tiles(query, of_queries, lists, border, none):
    """Sorts queries by cluster, and lays out tiles of their blocks and lists; see `staircase`.

    Args:
        query: `[batch, heads, length, depth]`, scaled.
        of_queries: int `[batch, key_heads, heads / key_heads * probes, length]`, the clusters of
            each query.
        lists: dictionary of `[batch, key_heads, clusters, members, ...]`, optionally with
            "positions", relative to the start of the chunk.
        border: int with the shape of `of_queries`, a number of a member that bounds those that a
            query sees.
        none: int, the border of a query that sees no member.

    Returns:
        The `Staircase`; a dictionary of its tiles' arguments, "query", "positions", "list" and
        "border", `[batch, key_heads, tiles, ...]`; and the lists, from which `_cut` gathers those
        of tiles.
    """
    heads, length = query.shape[1], size(query, 2)
    key_heads, num_clusters, window = (size(lists["key"], axis) for axis in (1, 2, 3))
    entries = size(of_queries, 2) * length
    probes = size(of_queries, 2) * key_heads // heads
    block_size = _block_size(entries, num_clusters, window)
    order, place, _ = sort_by_cluster(of_queries, num_clusters)
    column = tf.gather(flatten_blocks(of_queries), order, batch_dims=2)
    tiles = ceil_div(entries, block_size) + num_clusters - 1
    chunks = slices_of_blocks(key_heads, size(query, 0) * key_heads * tiles * block_size * window)
    stairs = staircase(column, order, place, block_size, num_clusters, chunks)
    border = stairs.of_sorted(tf.gather(flatten_blocks(border), order, batch_dims=2))
    sequence = tf.reshape(tf.range(size(query, 0) * key_heads), [-1, key_heads, 1])
    per_block = {
        "query": stairs.of_entries(fold_heads(tf.tile(query, [1, 1, probes, 1]), key_heads)),
        "positions": split_blocks(stairs.entry % length, stairs.count, block_size),
        "list": sequence * num_clusters + stairs.column,
        "border": tf.where(stairs.here, border, none),
    }
    lists = {"key_positions" if name == "positions" else name: x for name, x in lists.items()}
    return stairs, per_block, {name: tf.reshape(x, [-1, *x.shape[3:]]) for name, x in lists.items()}


def _cut(x, part):
    """Gathers the lists of a chunk of tiles."""
    return tf.gather(x, part["list"])


def _block_size(entries, num_clusters, window):
    """Returns the number of queries in a block: about as many as a cluster has."""
    most = block_size_of(window)
    if not isinstance(entries, int):
        return most
    return min(max(ceil_div(entries, num_clusters), MIN_BLOCK_SIZE), most)
