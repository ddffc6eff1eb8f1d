"""Strided attention as in the authors' code."""

import tensorflow as tf

from rt_keras.convert.t2t.attend import attend, attend_step
from rt_keras.convert.t2t.relative import relative_terms
from rt_keras.ops.blocks import ceil_div, size
from rt_keras.ops.caches import check_position, write
from rt_keras.ops.slices import over_heads
from rt_keras.ops.strided import columns, from_columns, keys_in_column


def strided_attention(
    query,
    key,
    value,
    *,
    stride,
    causal=False,
    query_mask=None,
    key_mask=None,
    dropout=0.0,
    **shared,
):
    """Computes `rt_keras.ops.strided_attention` as in the authors' code.

    Queries attend to the zeros that pad the last stride.

    Args:
        query: `[batch, heads, length, depth]`.
        key: `[batch, heads, length, depth]`, or None for the queries themselves.
        value: `[batch, heads, length, value_depth]`.
        stride: int, distance between consecutive keys.
        causal: bool, whether query i sees key j only if j <= i. Defaults to False.
        query_mask, key_mask: ignored, as in that code.
        dropout: float, fraction of the attention weights set to 0. Defaults to 0.
        **shared: `relative_embeddings`, `relative_values` and `seed`; see
            `rt_keras.convert.t2t.local.local_attention`.

    Returns:
        `[batch, heads, length, value_depth]`.

    Source: the code of Roy et al. 2021.

    >>> x = tf.random.normal([1, 2, 10, 4])
    >>> strided_attention(x, x, x, stride=4, causal=True).shape
    TensorShape([1, 2, 10, 4])
    """
    key = query if key is None else key
    query, key, value = (tf.convert_to_tensor(x) for x in (query, key, value))
    length = size(query, 2)

    def attend_heads(arguments):
        query, key, value = (columns(arguments[x], stride) for x in ("query", "key", "value"))
        steps = size(query, 3)
        allowed = tf.ones([1, 1], tf.bool)
        if causal:
            allowed = tf.range(steps) <= tf.range(steps)[:, None]
        terms = relative_terms(arguments, query, steps, 0, causal)
        random = {"dropout": dropout, "seed": arguments.get("seed")}
        return from_columns(attend(query, key, value, (allowed,), **terms, **random), length)

    inputs = {"query": query * query.shape[-1] ** -0.5, "key": key, "value": value}
    logits = size(query, 0) * size(query, 1) * length * ceil_div(length, stride)
    return over_heads(attend_heads, inputs, {}, shared, logits, value.dtype)


def strided_step(query, key, value, cache, position, *, stride, count=None, **tables):
    """Computes `rt_keras.ops.strided.strided_step` as in the authors' code.

    Args:
        query, key, value, cache, position, stride, count: see that function.
        **tables: `relative_embeddings` and `relative_values`, as in `strided_attention`.

    Returns:
        `[batch, heads, 1, value_depth]`, and the cache updated with this position.

    Source: the code of Roy et al. 2021.

    >>> from rt_keras.ops.strided import strided_cache
    >>> x = tf.random.normal([1, 2, 5, 4])
    >>> cache = strided_cache(x[:, :, :4], x[:, :, :4], stride=2, max_length=9)
    >>> last = x[:, :, 4:]
    >>> output, cache = strided_step(last, last, last, cache, 4, stride=2)
    >>> output.shape
    TensorShape([1, 2, 1, 4])
    """
    check_position(position, size(cache["key"], 2), count)
    cache = write(cache, position, count, key=key, value=value)
    return attend_step(query, *keys_in_column(cache, position, stride), **tables), cache
