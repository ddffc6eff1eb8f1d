"""Nearest attention with a cache: rings of the last members of each cluster.

A ring does not grow with the sequence. `nearest_cache` fills the rings from a prompt; a chunk or a
step attends to them and adds its own members.
"""

import tensorflow as tf

from rt_keras.ops.attend import attend_step, merge_sets
from rt_keras.ops.blocks import (
    flatten_blocks,
    fold_heads,
    pad_axis,
    places_of_rows,
    repeat_heads,
    shift_left,
    size,
    sizes,
    smaller,
    take_places,
)
from rt_keras.ops.caches import like, numbers_of_slots, put_rows, where_counted
from rt_keras.ops.nearest.assign import shifts_keys, sort_by_cluster
from rt_keras.ops.nearest.lists import attend_to_lists
from rt_keras.ops.nearest.separate import attend_separate, key_intervals
from rt_keras.ops.nearest.shared import Options, attend_shared, block_size_of
from rt_keras.ops.slices import slices_of_blocks


def nearest_cache(
    key,
    value,
    assignment,
    count,
    *,
    window_size,
    max_length=None,
    routed_key="key",
    keep_positions=False,
):
    """Builds the cache of `nearest_step`: a ring buffer of the last members of each cluster.

    Args:
        key: `[batch, heads, length, depth]`, not normalized, from the first position; the queries
            if these are shared.
        value: `[batch, key_heads, length, value_depth]`. With `routed_key` "previous_query",
            key_heads may be less than heads; see grouped-query attention in `nearest_attention`.
        assignment: the `Assignment`.
        count: int scalar, number of positions in the cache, the first ones; others are padding.
        window_size: int, maximum number of keys that a query attends to in one cluster.
        max_length: int, maximum length of the sequence, which also bounds the rings. Defaults to
            None, for no maximum.
        routed_key: "key", or "previous_query" with the queries as `key`, such that the key of
            position j is the query of position j - 1. Defaults to "key".
        keep_positions: bool, whether to store positions, which relative embeddings and `before`
            need in steps. Defaults to False.

    Returns:
        A dictionary of "key" and "value", `[batch, heads, clusters, window, ...]`, with normalized
        keys unless `use_query_key_norm` is False; "counts", int `[batch, heads, clusters]`, the
        number of members added so far; with `keep_positions`, "positions", int
        `[batch, heads, clusters, window]`; and with `routed_key` "previous_query",
        "query", `[batch, heads, 1, depth]`, the key of the next position. See `add_members` for the
        order of members.

    >>> x = tf.random.normal([1, 2, 50, 4])
    >>> from rt_keras.ops.nearest.assign import Assignment
    >>> assignment = Assignment(tf.random.normal([2, 3, 4]))
    >>> nearest_cache(x, x, assignment, 50, window_size=8)["key"].shape
    TensorShape([1, 2, 3, 8, 4])
    """
    batch, heads, length, _ = sizes(key)
    value, clusters = repeat_heads(value, heads), assignment.centroids.shape[1]
    window = window_size if max_length is None else smaller(window_size, max_length)
    shifted = shifts_keys(routed_key)
    if shifted:
        key, value = (tf.convert_to_tensor(x) for x in (key, value))
        # The last query is the key of the next position; zeros if there is none.
        next_key = tf.gather(pad_axis(key, 2, 1, 0), [count], axis=2)
        value, count = shift_left(value, 2), count - 1
    real = (tf.range(length) < count)[None]
    assigned = assignment.assign(key, None, real, real)
    members = {"key": assigned.key, "value": value}
    if keep_positions:
        positions = tf.range(length) + int(shifted)
        members["positions"] = tf.broadcast_to(positions, [batch, heads, length])
    rings = {
        name: tf.zeros([batch, heads, clusters, window, *x.shape[3:]], x.dtype)
        for name, x in members.items()
    }
    rings["counts"] = tf.zeros([batch, heads, clusters], tf.int32)
    cache = add_members(rings, members, assigned.key_clusters, clusters)
    return {**cache, "query": next_key} if shifted else cache


def nearest_chunk(
    query,
    key,
    value,
    cache,
    position,
    assignment,
    *,
    count=None,
    relative_embeddings=None,
    dropout=0.0,
    seed=None,
    return_logsumexp=False,
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
        assignment: the `Assignment`, of the same `use_query_key_norm` as in the cache.
        count: int scalar or `[batch]`, number of the chunk's positions that are not padding, the
            first ones. Outputs of padding are undefined. Defaults to None, for no padding.
        relative_embeddings: `[heads, 2 m + 1, depth]`; or None.
        dropout, seed: see `nearest_attention`.
        return_logsumexp: bool, whether to also return the logsumexp of the logits. Defaults to
            False.

    Returns:
        `[batch, heads, length, value_depth]`, 0 for a query without keys, or a pair of it and the
        logsumexp `[batch, heads, length]`; and the cache with these positions added.

    >>> from rt_keras.ops.nearest.assign import Assignment
    >>> x, assignment = tf.random.normal([1, 2, 50, 4]), Assignment(tf.random.normal([2, 3, 4]))
    >>> cache = nearest_cache(x, x, assignment, 30, window_size=8)
    >>> rest = x[:, :, 30:]
    >>> output, cache = nearest_chunk(rest, rest, rest, cache, 30, assignment)
    >>> output.shape
    TensorShape([1, 2, 20, 4])
    """
    length, num_clusters = size(query, 2), assignment.centroids.shape[1]
    positions = places_of_rows(position, tf.range(length))  # [batch or 1, length]
    is_key = None if count is None else tf.range(length) < places_of_rows(count, 0)
    shifted = "query" in cache
    if shifted:
        # [batch, heads, length + 1, depth]: the previous query is the first key.
        queries = tf.concat([tf.cast(cache["query"], query.dtype), query], axis=2)
        assigned = _shift(assignment.assign(queries, None), length)
        # Before the first position there is no query that could be its key.
        is_key = positions > 0 if count is None else is_key & (positions > 0)
    else:
        assigned = assignment.assign(query, key)
    if is_key is not None:
        key_clusters = tf.where(is_key[:, None, None], assigned.key_clusters, num_clusters)
        assigned = assigned._replace(key_clusters=key_clusters)
    members = {"key": assigned.key, "value": repeat_heads(value, assigned.key.shape[1])}
    if "positions" in cache:
        shape = tf.shape(assigned.key_clusters[:, :, 0])
        members["positions"] = tf.broadcast_to(positions[:, None], shape)
    options = Options(
        num_clusters,
        window_size=size(cache["key"], 3),
        shifted=shifted,
        relative_embeddings=relative_embeddings,
        dropout=dropout,
        seed=seed,
    )
    shared = (key is None or shifted) and assignment.num_probes == 1
    assigned = assigned._replace(query=assignment.scaled(assigned.query))
    results = _attend(assigned, members, cache, position, shared, options)
    output = merge_sets(*results, return_logsumexp=return_logsumexp)
    members = {name: tf.cast(x, cache[name].dtype) for name, x in members.items()}
    cache = add_members(cache, members, assigned.key_clusters, num_clusters)
    if shifted:
        last = take_places(queries, places_of_rows(length if count is None else count, [0]))
        cache["query"] = tf.cast(last, cache["query"].dtype)
    return output, cache


def _shift(assigned, length):
    """Gives each query the previous one as its key, from `length` + 1 shared queries and keys."""
    return assigned._replace(
        query=assigned.query[:, :, 1:],
        query_clusters=assigned.query_clusters[..., 1:],
        key=assigned.key[:, :, :length],
        key_clusters=assigned.key_clusters[..., :length],
    )


def _attend(assigned, members, cache, position, shared, options):
    """Computes attention of a chunk to its own members, and to those in the rings.

    Returns:
        Two pairs of an output `[batch, heads, length, value_depth]` and its logsumexp.
    """
    query, heads = assigned.query, assigned.query.shape[1]
    rings = {name: cache[name] for name in ("key", "value", "counts", "positions") if name in cache}
    key_clusters = assigned.key_clusters
    if options.relative_embeddings is not None:
        # Each query head has its own table of embeddings, and so needs its own keys.
        rings, members = (
            {name: repeat_heads(x, heads) for name, x in each.items()} for each in (rings, members)
        )
        key_clusters = repeat_heads(key_clusters, heads)
        rings["positions"] -= tf.reshape(position, [-1, 1, 1, 1])
    key, value = members["key"], members["value"]
    # [batch, key_heads, groups * probes, length]
    query_clusters = fold_heads(assigned.query_clusters, key.shape[1])
    seeds = [None, None] if options.seed is None else tf.unstack(tf.random.split(options.seed, 2))
    window = options.window_size
    entries = size(query, 0) * heads * size(query, 2) * size(query_clusters, 2)
    slices = slices_of_blocks(heads, 2 * entries * (window + block_size_of(window)))
    in_chunk = options._replace(slices=slices, seed=seeds[0])
    attend_members = _attend_shared if shared else _attend_separate
    return (
        attend_members(query, key, value, query_clusters, key_clusters, in_chunk),
        attend_to_lists(
            query, query_clusters, rings, key_clusters, options._replace(seed=seeds[1])
        ),
    )


def _attend_shared(query, key, value, query_clusters, key_clusters, options):
    """Computes attention of queries that are the keys of the same or the next position."""
    if not options.shifted:
        return attend_shared(query, key, value, query_clusters, options)
    # The first entry has a key but no query of the chunk, and the last a query but no key.
    query = pad_axis(query, 2, 1, 0)  # [batch, heads, length + 1, depth]
    key, value = (pad_axis(x, 2, 0, 1) for x in (key, value))
    clusters = tf.concat([key_clusters[..., :1], query_clusters], axis=3)
    return tuple(x[:, :, 1:] for x in attend_shared(query, key, value, clusters, options))


def _attend_separate(query, key, value, query_clusters, key_clusters, options):
    """Computes attention of queries to the keys of the chunk up to their own position."""
    intervals = key_intervals(query_clusters, key_clusters, options, inclusive=True)
    options = options._replace(shifted=False)
    return attend_separate(query, key, value, query_clusters, key_clusters, intervals, options)


def nearest_step(
    query,
    key,
    value,
    cache,
    position,
    assignment,
    *,
    window_size=None,
    before=None,
    count=None,
    relative_embeddings=None,
    return_logsumexp=False,
):
    """Computes causal `nearest_attention` of one position, given the cache of earlier ones.

    Args:
        query: `[batch, heads, 1, depth]`, not normalized.
        key: `[batch, key_heads, 1, depth]`, or None for the query itself. Not used if the cache has
            the query of the previous position, which is then the key.
        value: `[batch, key_heads, 1, value_depth]`.
        cache: the cache of `nearest_cache` or of the last step.
        position: int scalar, the query's position; or int `[batch]`, one for each row.
        assignment: the `Assignment`, of the same `use_query_key_norm` as in the cache.
        window_size: int, only needed with `before`.
        before: int scalar or `[batch]`, to see only the last `window_size` members of each cluster
            before this position. The cache must have positions, and be long enough to hold these
            members besides all later ones. Defaults to None, to see all members in the cache.
        count: int `[batch]`, 0 for rows whose position is padding: their cache is unchanged, and
            their outputs are undefined. Defaults to None, for no padding.
        return_logsumexp: see `nearest_attention`.
        relative_embeddings: `[heads, 2 m + 1, depth]`; or None.

    Returns:
        `[batch, heads, 1, value_depth]`, 0 for a query without keys, or a pair of it and the
        logsumexp `[batch, heads, 1]`; and the cache with this position added.

    >>> from rt_keras.ops.nearest.assign import Assignment
    >>> x, assignment = tf.random.normal([1, 2, 50, 4]), Assignment(tf.random.normal([2, 3, 4]))
    >>> cache = nearest_cache(x, x, assignment, 49, window_size=8)
    >>> last = x[:, :, 49:]
    >>> output, cache = nearest_step(last, last, last, cache, 49, assignment)
    >>> output.shape
    TensorShape([1, 2, 1, 4])
    """
    position = tf.convert_to_tensor(position)
    assigned = assignment.assign(query, cache.get("query", key))
    query_clusters = assigned.query_clusters[..., 0]  # [batch, heads, probes]
    key_heads = assigned.key.shape[1]
    new = assigned.key, repeat_heads(value, key_heads)
    cache = _add_member(cache, assigned.key_clusters[:, :, 0], *new, position, count)
    if "query" in cache:
        next_key = tf.cast(query, cache["query"].dtype)
        cache["query"] = where_counted(count, next_key, cache["query"])

    # [batch, key_heads, groups * probes]
    clusters = fold_heads(query_clusters, key_heads)

    def of_clusters(x):
        """Gathers the entries of the queries' clusters, `[batch, heads, probes, ...]`."""
        x = tf.gather(x, clusters, batch_dims=2)
        return tf.reshape(x, [*sizes(query_clusters), *sizes(x)[3:]])

    def members(x):
        """Joins the rings of these clusters, `[batch, heads, probes * window, ...]`."""
        return flatten_blocks(of_clusters(x))

    counts = of_clusters(cache["counts"])[..., None]  # [batch, heads, probes, 1]
    positions = members(cache["positions"]) if "positions" in cache else None
    window = size(cache["key"], 3)
    if before is None:
        allowed = tf.range(window) < counts  # [batch, heads, probes, window]
    else:
        allowed = _last_before(before, counts, window, positions, window_size)
    output = attend_step(
        assignment.with_scale(assigned.query),
        members(cache["key"]),
        members(cache["value"]),
        flatten_blocks(allowed)[:, :, None],
        None if relative_embeddings is None else tf.reshape(position, [-1, 1, 1]) - positions,
        relative_embeddings=relative_embeddings,
        return_logsumexp=return_logsumexp,
    )
    return output, cache


def _last_before(before, counts, window, positions, window_size):
    """Returns which slots have one of the last `window_size` members before a position."""
    # The number in the cluster of the member in each slot, [batch, heads, probes, window].
    number = numbers_of_slots(counts[..., 0], window)
    is_before = tf.reshape(positions, tf.shape(number)) < tf.reshape(before, [-1, 1, 1, 1])
    later = tf.cast((number >= 0) & ~is_before, tf.int32)
    end = counts - tf.reduce_sum(later, axis=-1, keepdims=True)
    return (number >= tf.maximum(end - window_size, 0)) & (number < end)


def _add_member(cache, cluster, key, value, position, count):
    """Adds a member of a cluster `[batch, heads, 1]` to the cache, replacing the oldest one.

    Rows where `count` is 0 are unchanged.
    """
    batch, heads, clusters, window = (size(cache["key"], axis) for axis in range(4))
    cluster = cluster[:, :, 0]
    slot = cluster * window + tf.gather(cache["counts"], cluster, batch_dims=2) % window

    def put(ring, new):
        x = put_rows(flatten_blocks(ring), slot[..., None], new, count)
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


def add_members(rings, members, member_clusters, num_clusters):
    """Adds members to rings, replacing the oldest ones.

    The r-th member of a cluster is in slot r modulo the ring's length.

    Args:
        rings: dictionary of "counts", int `[batch, heads, clusters]`, the number of members added
            so far, and of tensors `[batch, heads, clusters, window, ...]`. Other entries are kept.
        members: dictionary of `[batch, heads, length, ...]`, for each of those tensors.
        member_clusters: int `[batch, heads, 1, length]`, the clusters of the members;
            `num_clusters` for those in none.
        num_clusters: int, number of clusters.

    Returns:
        The updated dictionary.
    """
    window = size(rings["key"], 3)
    order, _, starts = sort_by_cluster(member_clusters, num_clusters)
    starts, ends = starts[..., :-2], starts[..., 1:-1]
    counts = rings["counts"] + ends - starts
    # [batch, heads, clusters, window]: how many of the new members come before that of each slot.
    number = numbers_of_slots(counts, window) - rings["counts"][..., None]
    rank = tf.clip_by_value(number + starts[..., None], 0, size(order, 2) - 1)
    entries = tf.gather(order, flatten_blocks(rank), batch_dims=2)

    def put(ring, new):
        new = tf.gather(tf.cast(new, ring.dtype), entries, batch_dims=2)
        new = tf.reshape(new, [*sizes(rank), *new.shape[3:]])
        is_new = tf.reshape(number >= 0, [*sizes(rank), *[1] * (new.shape.rank - 4)])
        return tf.where(is_new, new, ring)

    changed = {name: put(rings[name], x) for name, x in members.items()}
    return {**rings, **changed, "counts": counts}
