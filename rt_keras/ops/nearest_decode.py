"""Nearest routing attention of one position at a time, from rings of each cluster's members."""

import tensorflow as tf

from rt_keras.ops.attend import attend_step
from rt_keras.ops.blocks import (
    flatten_blocks,
    fold_heads,
    pad_axis,
    repeat_heads,
    shift_left,
    size,
    sizes,
    smaller,
)
from rt_keras.ops.caches import like, put_rows, where_counted
from rt_keras.ops.rings import add_members
from rt_keras.ops.routed import Routing, shifts_keys


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
