"""Strided attention of one position at a time: all keys and values are kept."""

import tensorflow as tf

from rt_keras.ops.blocks import ceil_div, size
from rt_keras.ops.decode import attend_step, check_position, with_bias, write
from rt_keras.ops.full_decode import full_cache


def strided_cache(key, value, *, stride, max_length, token_bias=None):
    """The cache of `strided_step`: every position's key and value, to whole strides.

    Args: those of `full_cache`, and
        stride: positions from one key to the next.

    Returns:
        A dictionary of "key" and "value", `[batch, heads, strides * stride, ...]`.
    """
    length = ceil_div(max_length, stride) * stride
    return full_cache(key, value, max_length=length, token_bias=token_bias)


def strided_step(
    query,
    key,
    value,
    cache,
    position,
    *,
    stride,
    token_bias=None,
    relative_embeddings=None,
    relative_values=None,
):
    """Causal `strided_attention` of one position, given those before it.

    Args: those of `full_step`, and
        stride: positions from one key to the next.
        relative_values: `[heads, 2 m + 1, value_depth]`.

    Returns:
        `[batch, heads, 1, value_depth]`, and the cache with this position in it.

    >>> x = tf.random.normal([1, 2, 5, 4])
    >>> cache = strided_cache(x[:, :, :4], x[:, :, :4], stride=2, max_length=9)
    >>> last = x[:, :, 4:]
    >>> output, cache = strided_step(last, last, last, cache, 4, stride=2)
    >>> output.shape
    TensorShape([1, 2, 1, 4])
    """
    length = size(cache["key"], 2)
    check_position(position, length)
    cache = write(cache, position, key=with_bias(key, token_bias), value=value)
    steps = tf.range(length // stride)

    def column(x):
        batch, heads, depth = (size(x, axis) for axis in (0, 1, 3))
        x = tf.reshape(x, [batch, heads, length // stride, stride, depth])
        return x[:, :, :, position % stride]

    output = attend_step(
        query,
        column(cache["key"]),
        column(cache["value"]),
        steps <= position // stride,
        position // stride - steps,
        relative_embeddings=relative_embeddings,
        relative_values=relative_values,
    )
    return output, cache
