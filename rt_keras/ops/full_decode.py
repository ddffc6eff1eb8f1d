"""Full attention of one position at a time: the cache has all keys and values."""

import tensorflow as tf

from rt_keras.ops.blocks import size
from rt_keras.ops.decode import attend_step, check_position, from_rows, pad_to, write


def full_cache(key, value, *, max_length):
    """Builds the cache of `full_step`: the keys and values of all positions.

    Args:
        key: `[batch, heads, length, depth]`, from the first position. Each step overwrites its own
            position and ignores later ones.
        value: `[batch, heads, length, value_depth]`.
        max_length: int, maximum length of the sequence.

    Returns:
        A dictionary of "key" and "value", `[batch, heads, max_length, ...]`.

    >>> x = tf.random.normal([1, 2, 5, 4])
    >>> full_cache(x, x, max_length=9)["key"].shape
    TensorShape([1, 2, 9, 4])
    """
    return {"key": pad_to(key, max_length), "value": pad_to(value, max_length)}


def full_step(query, key, value, cache, position, *, count=None, **options):
    """Computes causal `full_attention` of one position, given the cache of earlier ones.

    Args:
        query: `[batch, heads, 1, depth]`.
        key: `[batch, heads, 1, depth]`.
        value: `[batch, heads, 1, value_depth]`.
        cache: the cache of `full_cache` or of the last step.
        position: int scalar, the query's position; or int `[batch]`, one for each row.
        count: int `[batch]`, 0 for rows whose position is padding: their cache is unchanged, and
            their outputs are undefined. Defaults to None, for no padding.
        **options: `relative_embeddings` and `return_logsumexp` of `full_attention`.

    Returns:
        `[batch, heads, 1, value_depth]`, or a pair of it and the logsumexp `[batch, heads, 1]`; and
        the cache with this position added.

    Raises:
        ValueError: if the position is known to be outside of the cache.

    >>> x = tf.random.normal([1, 2, 5, 4])
    >>> cache = full_cache(x[:, :, :4], x[:, :, :4], max_length=9)
    >>> last = x[:, :, 4:]
    >>> output, cache = full_step(last, last, last, cache, 4)
    >>> output.shape
    TensorShape([1, 2, 1, 4])
    """
    cache = add_kept(cache, position, key, value, count)
    distance = from_rows(position, -tf.range(size(cache["key"], 2)))
    allowed = distance[..., None, :] >= 0
    return attend_step(query, cache["key"], cache["value"], allowed, distance, **options), cache


def add_kept(cache, position, key, value, count):
    """Adds a position to a cache of all positions, in rows where it is not padding."""
    check_position(position, size(cache["key"], 2), count)
    return write(cache, position, count, key=key, value=value)


def full_cross_step(query, key, value, position, *, key_mask=None, **options):
    """Computes `full_attention` of one position to another sequence.

    Args:
        query: `[batch, heads, queries, depth]`, any number of queries at the same position.
        key: `[batch, heads, keys, depth]`.
        value: `[batch, heads, keys, value_depth]`.
        position: int scalar, the queries' position.
        key_mask: bool `[batch, keys]`, False for padding; or None.
        **options: `relative_embeddings` of `full_attention`.

    Returns:
        `[batch, heads, queries, value_depth]`.

    >>> x = tf.random.normal([1, 2, 5, 4])
    >>> full_cross_step(x[:, :, :1], x, x, 7).shape
    TensorShape([1, 2, 1, 4])
    """
    allowed = tf.ones([1, 1, 1, 1], tf.bool)
    if key_mask is not None:
        allowed = tf.cast(key_mask, tf.bool)[:, None, None]
    distance = position - tf.range(size(key, 2))
    return attend_step(query, key, value, allowed, distance, causal=False, **options)
