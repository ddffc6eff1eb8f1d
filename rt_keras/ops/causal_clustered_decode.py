"""Causal clustered attention of one position at a time, with running sums for the centroids."""

import tensorflow as tf

from rt_keras.ops.attend import accumulation_dtype, attend, attend_step, merge_sets
from rt_keras.ops.blocks import ceil_div, places_of_rows, size
from rt_keras.ops.caches import like, where_counted
from rt_keras.ops.local.cached import add_position, keys_in_view, local_cache
from rt_keras.ops.routing import nearest_centroid, normalize, prepare


def causal_clustered_cache(key, value, centroids, count, *, block_size, max_length=None):
    """Builds the cache of `causal_clustered_step`: the last block and a sum for each centroid.

    Args:
        key: `[batch, heads, length, depth]`, not normalized, from the first position.
        value: `[batch, heads, length, value_depth]`.
        centroids: `[heads, clusters, depth]`.
        count: int scalar, number of positions in the cache, the first ones; others are padding.
        block_size: int, positions in a block.
        max_length: int, maximum length of the sequence, which also bounds the cached block.
            Defaults to None, for no maximum.

    Returns:
        A dictionary of "key" and "value", `[batch, heads, places, ...]`, the last block with
        normalized keys; "output", `[batch, heads, clusters, value_depth]`, and "logsumexp",
        `[batch, heads, clusters]`, the attention of each centroid to all positions; and
        "output_before" and "logsumexp_before", the same for the positions before the last block.

    >>> x = tf.random.normal([1, 2, 50, 4])
    >>> cache = causal_clustered_cache(x, x, tf.random.normal([2, 3, 4]), 50, block_size=8)
    >>> cache["key"].shape, cache["output"].shape
    (TensorShape([1, 2, 8, 4]), TensorShape([1, 2, 3, 4]))
    """
    key, value = normalize(tf.convert_to_tensor(key)), tf.convert_to_tensor(value)
    dtype = accumulation_dtype(key.dtype)

    def of_centroids(end):
        """The attention of each centroid to the positions before `end`."""
        allowed = tf.range(size(key, 2)) < end
        scaled = _scaled(centroids, key)
        return attend(scaled, key, tf.cast(value, dtype), allowed)

    # If the next position starts a block, the last block is the full one before it.
    start = tf.maximum(ceil_div(count, block_size) - 1, 0) * block_size
    sizes = {"block_size": block_size, "look_back": 0, "max_length": max_length}
    return {
        **local_cache(key, value, count, **sizes),
        **dict(zip(("output", "logsumexp"), of_centroids(count))),
        **dict(zip(("output_before", "logsumexp_before"), of_centroids(start))),
    }


def causal_clustered_step(
    query, key, value, cache, position, centroids, *, block_size, count=None, load_bias=None
):
    """Computes `causal_clustered_attention` of one position, given the cache of earlier ones.

    Args:
        query: `[batch, heads, 1, depth]`, not normalized.
        key: `[batch, heads, 1, depth]`, or None for the query itself.
        value: `[batch, heads, 1, value_depth]`.
        cache: the cache of `causal_clustered_cache` or of the last step.
        position: int scalar, the query's position; or int `[batch]`, one for each row.
        centroids: `[heads, clusters, depth]`.
        block_size: int, positions in a block.
        count: int `[batch]`, 0 for rows whose position is padding: their cache is unchanged, and
            their outputs are undefined. Defaults to None, for no padding.
        load_bias: `[heads, clusters]`, or None for zeros.

    Returns:
        `[batch, heads, 1, value_depth]`, and the cache with this position added.

    >>> x, centroids = tf.random.normal([1, 2, 50, 4]), tf.random.normal([2, 3, 4])
    >>> cache = causal_clustered_cache(x, x, centroids, 49, block_size=8)
    >>> last = x[:, :, 49:]
    >>> output, cache = causal_clustered_step(
    ...     last, last, last, cache, 49, centroids, block_size=8
    ... )
    >>> output.shape
    TensorShape([1, 2, 1, 4])
    """
    query, key = prepare(query, key)
    cache, kept = _add(cache, key, value, position, centroids, block_size, count), cache
    seen = keys_in_view(cache, position, block_size, 0, None)
    own = attend_step(query, **seen, return_logsumexp=True)
    group = nearest_centroid(query, centroids, load_bias)
    before = tf.gather(cache["output_before"], group, batch_dims=2)
    logsumexp = tf.gather(cache["logsumexp_before"], group, batch_dims=2)
    output = merge_sets((tf.cast(own[0], before.dtype), own[1]), (before, logsumexp))
    return tf.cast(output, value.dtype), like(cache, kept)


def _add(cache, key, value, position, centroids, block_size, count):
    """Adds a position with a normalized key to the cache, in rows where it is not padding."""
    ring = {name: cache[name] for name in ("key", "value")}
    ring = add_position(ring, position, key, value, None, count)
    starts = tf.cast(places_of_rows(position, 0)[:, 0] % block_size == 0, tf.int32)
    starts *= 1 if count is None else count
    before = {
        f"{name}_before": where_counted(starts, cache[name], cache[f"{name}_before"])
        for name in ("output", "logsumexp")
    }
    logits = tf.matmul(_scaled(centroids, key), key, transpose_b=True)[..., 0]
    logits = tf.cast(logits, cache["logsumexp"].dtype)
    names = ("output", "logsumexp")
    held = [cache[name] for name in names]
    value = tf.broadcast_to(tf.cast(value, held[0].dtype), tf.shape(held[0]))
    merged = merge_sets(held, (value, logits), return_logsumexp=True)
    after = {name: where_counted(count, x, cache[name]) for name, x in zip(names, merged)}
    return {**ring, **before, **after}


def _scaled(centroids, key):
    """Scales centroids as queries."""
    return tf.cast(centroids * key.shape[-1] ** -0.5, key.dtype)[None]
