"""Strided attention of one position at a time: all keys and values are kept."""

import tensorflow as tf

from rt_keras.ops.blocks import ceil_div, size
from rt_keras.ops.decode import attend_step, check_position, write
from rt_keras.ops.full_decode import full_cache


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
        position: int scalar, the query's position.
        stride: int, positions from one key to the next.
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
    check_position(position, size(cache["key"], 2))
    cache = write(cache, position, key=key, value=value)
    seen = keys_in_column(cache, position, stride)
    if outside is not None:
        seen["allowed"] &= ~outside(position, position - stride * seen["distance"])
    seen |= {"relative_embeddings": relative_embeddings, "return_logsumexp": return_logsumexp}
    return attend_step(query, **seen), cache


def keys_in_column(cache, position, stride):
    """What a causal query at `position` sees of a cache: the arguments of `attend_step`."""
    steps = size(cache["key"], 2) // stride

    def column(x):
        batch, heads, depth = (size(x, axis) for axis in (0, 1, 3))
        return tf.reshape(x, [batch, heads, steps, stride, depth])[:, :, :, position % stride]

    distance = position // stride - tf.range(steps)
    return {
        "key": column(cache["key"]),
        "value": column(cache["value"]),
        "allowed": distance >= 0,
        "distance": distance,
    }
