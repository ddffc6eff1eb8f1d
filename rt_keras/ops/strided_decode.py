"""Strided attention of one position at a time: all keys and values are kept."""

import tensorflow as tf

from rt_keras.ops.blocks import ceil_div, places_of_rows, size, take_places
from rt_keras.ops.decode import attend_step, from_rows
from rt_keras.ops.full_decode import add_kept, full_cache


def strided_cache(key, value, *, stride, max_length):
    """The cache of `strided_step`: every position's key and value, up to whole strides.

    Args:
        key: `[batch, heads, length, depth]`, of positions from the first on.
        value: `[batch, heads, length, value_depth]`.
        stride: int, positions from one key to the next.
        max_length: int, how many positions there will be.

    Returns:
        A dictionary of "key" and "value", `[batch, heads, strides * stride, ...]`.
    """
    length = ceil_div(max_length, stride) * stride
    return full_cache(key, value, max_length=length)


def strided_step(
    query,
    key,
    value,
    cache,
    position,
    *,
    stride,
    count=None,
    relative_embeddings=None,
    outside=None,
    return_logsumexp=False,
):
    """Causal `strided_attention` of one position, given those before it.

    Args:
        query: `[batch, heads, 1, depth]`.
        key: `[batch, heads, 1, depth]`.
        value: `[batch, heads, 1, value_depth]`.
        cache: the cache of `strided_cache` or of the last step.
        position: int scalar, the query's position; or int `[batch]`.
        stride: int, positions from one key to the next.
        count: int `[batch]`, 0 for rows whose position is padding: they keep their cache, and their
            outputs mean nothing. None, the default, if all count.
        relative_embeddings: `[heads, 2 m + 1, depth]`; or None.
        outside: see `strided_attention`; or None.
        return_logsumexp: bool, whether to return the logsumexp of the logits too. Defaults to
            False.

    Returns:
        `[batch, heads, 1, value_depth]`, or the pair of it and the logsumexp `[batch, heads, 1]`;
        and the cache with this position in it.

    >>> x = tf.random.normal([1, 2, 5, 4])
    >>> cache = strided_cache(x[:, :, :4], x[:, :, :4], stride=2, max_length=9)
    >>> last = x[:, :, 4:]
    >>> output, cache = strided_step(last, last, last, cache, 4, stride=2)
    >>> output.shape
    TensorShape([1, 2, 1, 4])
    """
    cache = add_kept(cache, position, key, value, count)
    seen = keys_in_column(cache, position, stride)
    if outside is not None:
        own = from_rows(position, 0)
        seen["allowed"] &= ~outside(own, own - stride * seen["distance"])[..., None, :]
    seen |= {"relative_embeddings": relative_embeddings, "return_logsumexp": return_logsumexp}
    return attend_step(query, **seen), cache


def keys_in_column(cache, position, stride):
    """What a causal query at `position` sees of a cache: the arguments of `attend_step`."""
    first = tf.range(0, size(cache["key"], 2), stride)
    places = places_of_rows(position % stride, first)
    distance = from_rows(position // stride, -first // stride)
    return {
        "key": take_places(cache["key"], places),
        "value": take_places(cache["value"], places),
        "allowed": distance[..., None, :] >= 0,
        "distance": distance,
    }
