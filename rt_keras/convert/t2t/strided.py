"""Strided attention as in the authors' code."""

import tensorflow as tf

from rt_keras.convert.t2t.attend import attend
from rt_keras.convert.t2t.relative import relative_terms
from rt_keras.ops.blocks import ceil_div, size
from rt_keras.ops.slices import over_heads
from rt_keras.ops.strided import columns, from_columns


def strided_attention(inputs, stride, tables):
    """Computes `rt_keras.ops.strided_attention` as in the authors' code.

    Queries attend to the zeros that pad the last stride.

    Args:
        inputs: `AttentionInputs`. Masks are ignored, as in that code.
        stride: int, distance between consecutive keys.
        tables: dictionary of `relative_embeddings` and `relative_values`, or an empty one; see
            `rt_keras.convert.t2t.local.local_attention`.

    Returns:
        `[batch, heads, length, value_depth]`.

    Source: the code of Roy et al. 2021.

    >>> from rt_keras.layers.attention_inputs import AttentionInputs
    >>> x = tf.random.normal([1, 2, 10, 4])
    >>> strided_attention(AttentionInputs(x, x, x), 4, {}).shape
    TensorShape([1, 2, 10, 4])
    """
    vectors = inputs.query, inputs.keys, inputs.value
    query, key, value = (tf.convert_to_tensor(x) for x in vectors)
    length = size(query, 2)

    def attend_heads(arguments):
        query, key, value = (columns(arguments[x], stride) for x in ("query", "key", "value"))
        steps = size(query, 3)
        allowed = tf.ones([1, 1], tf.bool)
        if inputs.causal:
            allowed = tf.range(steps) <= tf.range(steps)[:, None]
        terms = relative_terms(arguments, query, steps, 0, inputs.causal)
        random = {"dropout": inputs.dropout, "seed": arguments.get("seed")}
        return from_columns(attend(query, key, value, (allowed,), **terms, **random), length)

    activations = {"query": query * query.shape[-1] ** -0.5, "key": key, "value": value}
    shared = {"seed": inputs.seed, **tables}
    logits = size(query, 0) * size(query, 1) * length * ceil_div(length, stride)
    return over_heads(attend_heads, activations, {}, shared, logits, value.dtype)
