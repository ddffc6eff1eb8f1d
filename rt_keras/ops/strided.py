"""Strided attention: every query against the positions at multiples of a stride before it."""

import functools

import tensorflow as tf

from rt_keras.ops.attend import attend
from rt_keras.ops.blocks import ceil_div, join_blocks, size, split_blocks
from rt_keras.ops.chunks import over_heads
from rt_keras.ops.relative import window_bias, window_values


def strided_attention(
    query,
    key,
    value,
    *,
    stride,
    causal=False,
    query_mask=None,
    key_mask=None,
    token_bias=None,
    relative_embeddings=None,
    relative_values=None,
    reference=False,
    dropout=0.0,
    seed=None,
):
    """Attention of each query to the keys that a multiple of `stride` positions lies between.

    ```
    output_i = sum_(j ≡ i mod stride) softmax_j(query_i · (key_j + r_ij) / sqrt(depth) + t_j)
               (value_j + s_ij)
    ```

    over the j <= i if causal. The cost is O(n² / stride), which is O(n^1.5) for a stride of
    sqrt(n). In the order of `rt_keras.ops.to_blocks`, and with the size of a block for a stride,
    those are the positions at the same place in every block of an image.

    Args:
        query: `[batch, heads, length, depth]`.
        key: `[batch, heads, length, depth]`, or None for the queries themselves.
        value: `[batch, heads, length, value_depth]`.
        stride: positions from one key to the next.
        causal: whether query i sees key j only if j <= i.
        query_mask: bool `[batch, length]`, False for padding, whose output is 0.
        key_mask: bool `[batch, length]`, False for padding, which no query sees.
        token_bias: `[batch, length]`, t above.
        relative_embeddings: `[heads, 2 m + 1, depth]`, of r_ij, which depends on
            (i - j) / stride; further distances count as m. A first axis of 1 is for all heads.
        relative_values: `[heads, 2 m + 1, value_depth]`, of s_ij, likewise.
        reference: whether to compute what the code of the paper's authors does, for its
            checkpoints alone: masks and token bias count for nothing, and the zeros that fill up
            the last stride are attended to.
        dropout: share of the attention weights set to 0.
        seed: int `[2]`, needed where `dropout` is above 0.

    Returns:
        `[batch, heads, length, value_depth]`. A query that may see no key gets 0.

    Raises:
        ValueError: if queries and keys differ in length.

    Source: Child et al. 2019, Generating Long Sequences with Sparse Transformers, section 4.3,
    the head A^(2) of strided attention.

    >>> x = tf.random.normal([1, 2, 10, 4])
    >>> strided_attention(x, x, x, stride=4, causal=True).shape
    TensorShape([1, 2, 10, 4])
    """
    key = query if key is None else key
    query, key, value = (tf.convert_to_tensor(x) for x in (query, key, value))
    length = size(query, 2)
    if isinstance(length, int) and key.shape[2] not in (None, length):
        raise ValueError(
            "Strided attention needs as many keys as queries. "
            f"Received: query of length {length}, key of length {key.shape[2]}."
        )
    query *= query.shape[-1] ** -0.5
    logits = size(query, 0) * size(query, 1) * length * ceil_div(length, stride)
    return over_heads(
        lambda arguments: _strided_attention(arguments, length, stride, causal, reference, dropout),
        {
            "query": query,
            "key": key,
            "value": value,
            "relative_embeddings": relative_embeddings,
            "relative_values": relative_values,
        },
        {"query_mask": query_mask, "key_mask": key_mask, "token_bias": token_bias, "seed": seed},
        logits,
        value.dtype,
    )


def _strided_attention(arguments, length, stride, causal, reference, dropout):
    steps = ceil_div(length, stride)

    def columns(x):
        """`[batch, heads, length, ...]` to `[batch, heads, stride, steps, ...]`."""
        return _swap(split_blocks(x, steps, stride))

    query = columns(arguments["query"])
    allowed = tf.ones([1, 1, 1, 1, 1], tf.bool)
    if causal:
        allowed = (tf.range(steps) <= tf.range(steps)[:, None])[None, None, None]
    if not reference:
        allowed &= columns(tf.ones([1, 1, length], tf.bool))[..., None, :]
        if "key_mask" in arguments:
            allowed &= columns(tf.cast(arguments["key_mask"], tf.bool)[:, None])[..., None, :]
        if "query_mask" in arguments:
            query_mask = columns(tf.cast(arguments["query_mask"], tf.bool)[:, None])
            allowed &= query_mask[..., None]
    bias = relative_values = None
    if "relative_embeddings" in arguments:
        bias = window_bias(query, arguments["relative_embeddings"], steps, 0, causal)
    if "token_bias" in arguments and not reference:
        token_bias = tf.cast(arguments["token_bias"], query.dtype)
        of_keys = columns(token_bias[:, None])[..., None, :]
        bias = of_keys if bias is None else bias + of_keys
    if "relative_values" in arguments:
        relative_values = functools.partial(
            window_values, embeddings=arguments["relative_values"], offset=0, causal=causal
        )
    output, _ = attend(
        query,
        columns(arguments["key"]),
        columns(arguments["value"]),
        allowed,
        bias=bias,
        relative_values=relative_values,
        reference=reference,
        dropout=dropout,
        seed=arguments.get("seed"),
    )
    return join_blocks(_swap(output), length)


def _swap(x):
    """Axes 2 and 3 of `x` exchanged."""
    return tf.transpose(x, [0, 1, 3, 2, *range(4, x.shape.rank)])
