"""Strided attention of one position at a time: the cache has all keys and values."""

import tensorflow as tf

from rt_keras.ops.blocks import ceil_div, places_of_rows, size, take_places
from rt_keras.ops.decode import attend_step, from_rows
from rt_keras.ops.full_decode import add_kept, full_cache


def strided_cache(key, value, *, stride, max_length):
    """Builds the cache of `strided_step`: the keys and values of all positions.

    Args:
        key: `[batch, heads, length, depth]`, from the first position.
        value: `[batch, heads, length, value_depth]`.
        stride: int, positions from one key to the next.
        max_length: int, maximum length of the sequence.

    Returns:
        A dictionary of "key" and "value", `[batch, heads, places, ...]`, where places is
        `max_length` rounded up to a multiple of `stride`.
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
    outside=None,
    count=None,
    relative_embeddings=None,
    return_logsumexp=False,
):
    """Computes causal `strided_attention` of one position, given the cache of earlier ones.

    Args:
        query: `[batch, heads, 1, depth]`.
        key: `[batch, heads, 1, depth]`.
        value: `[batch, heads, 1, value_depth]`.
        cache: the cache of `strided_cache` or of the last step.
        position: int scalar, the query's position; or int `[batch]`, one for each row.
        stride: int, positions from one key to the next.
        outside: see `strided_attention`; or None.
        count: int `[batch]`, 0 for rows whose position is padding: their cache is unchanged, and
            their outputs are undefined. Defaults to None, for no padding.
        relative_embeddings: `[heads, 2 m + 1, depth]`; or None.
        return_logsumexp: bool, whether to also return the logsumexp of the logits. Defaults to
            False.

    Returns:
        `[batch, heads, 1, value_depth]`, or a pair of it and the logsumexp `[batch, heads, 1]`; and
        the cache with this position added.

    Raises:
        ValueError: if the position is known to be outside of the cache.

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
    """Returns the keys that a causal query at `position` sees, as arguments of `attend_step`."""
    first = tf.range(0, size(cache["key"], 2), stride)
    places = places_of_rows(position % stride, first)
    distance = from_rows(position // stride, -first // stride)
    return {
        "key": take_places(cache["key"], places),
        "value": take_places(cache["value"], places),
        "allowed": distance[..., None, :] >= 0,
        "distance": distance,
    }
