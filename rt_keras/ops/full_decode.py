"""Full attention of one position at a time: all keys and values are kept."""

import tensorflow as tf

from rt_keras.ops.blocks import size
from rt_keras.ops.decode import attend_step, check_position, from_rows, pad_to, write


def full_cache(key, value, *, max_length):
    """The cache of `full_step`: every position's key and value.

    Args:
        key: `[batch, heads, length, depth]`, of positions from the first on. Steps overwrite their
            own position, so that only positions before it count.
        value: `[batch, heads, length, value_depth]`.
        max_length: int, how many positions there will be.

    Returns:
        A dictionary of "key" and "value", `[batch, heads, max_length, ...]`.

    >>> x = tf.random.normal([1, 2, 5, 4])
    >>> full_cache(x, x, max_length=9)["key"].shape
    TensorShape([1, 2, 9, 4])
    """
    return {"key": pad_to(key, max_length), "value": pad_to(value, max_length)}


def full_step(query, key, value, cache, position, *, count=None, **options):
    """Causal `full_attention` of one position, given those before it.

    Args:
        query: `[batch, heads, 1, depth]`.
        key: `[batch, heads, 1, depth]`.
        value: `[batch, heads, 1, value_depth]`.
        cache: the cache of `full_cache` or of the last step.
        position: int scalar, the query's position; or int `[batch]`.
        count: int `[batch]`, 0 for rows whose position is padding: they keep their cache, and their
            outputs mean nothing. None, the default, if all count.
        **options: `relative_embeddings`, `activation` and `return_logsumexp` of `full_attention`.

    Returns:
        `[batch, heads, 1, value_depth]`, or the pair of it and the logsumexp `[batch, heads, 1]`;
        and the cache with this position in it.

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
    """A cache of all positions with one more, in rows where it counts."""
    check_position(position, size(cache["key"], 2), count)
    return write(cache, position, count, key=key, value=value)


def full_cross_step(query, key, value, position, *, key_mask=None, **options):
    """`full_attention` of one position to another sequence.

    Args:
        query: `[batch, heads, queries, depth]`, any number of queries at the same position.
        key: `[batch, heads, keys, depth]`.
        value: `[batch, heads, keys, value_depth]`.
        position: int scalar.
        key_mask: bool `[batch, keys]`, False for padding; or None.
        **options: `relative_embeddings` and `activation` of `full_attention`.

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
