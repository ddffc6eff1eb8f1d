"""Local attention: every query against the blocks around its own."""

import tensorflow as tf

from rt_keras.ops.attend import attend
from rt_keras.ops.blocks import ceil_div, join_blocks, overlapping_blocks, size, split_blocks
from rt_keras.ops.chunks import over_heads
from rt_keras.ops.relative import window_bias


def local_attention(
    query,
    key,
    value,
    *,
    block_size,
    look_back=1,
    causal=False,
    query_mask=None,
    key_mask=None,
    relative_embeddings=None,
    dropout=0.0,
    seed=None,
):
    """Attention of each block of queries to its own block and those beside it.

    ```
    output_i = sum_(j in N(i)) softmax_j(query_i · (key_j + r_(i - j)) / sqrt(depth)) value_j
    ```

    N(i) are the positions of i's block and of the `look_back` blocks before it, those up to i if
    causal; else the `look_back` blocks after it as well. The cost is O(n · block_size).

    Args:
        query: `[batch, heads, length, depth]`.
        key: `[batch, heads, length, depth]`, or None for the queries themselves.
        value: `[batch, heads, length, value_depth]`.
        block_size: positions in a block. The length need not be a multiple of it.
        look_back: blocks before its own that a query sees.
        causal: whether query i sees key j only if j <= i.
        query_mask: bool `[batch, length]`, False for padding, whose output is 0.
        key_mask: bool `[batch, length]`, False for padding, which no query sees.
        relative_embeddings: `[heads, 2 m + 1, depth]`, r above; further distances count as m.
        dropout: share of the attention weights set to 0.
        seed: int `[2]`, needed where `dropout` is above 0.

    Returns:
        `[batch, heads, length, value_depth]`. A query that may see no key gets 0.

    Raises:
        ValueError: if queries and keys differ in length.

    Source: Roy et al. 2021, Efficient Content-Based Sparse Attention with Routing Transformers,
    section 3.2; r: Shaw et al. 2018.

    >>> x = tf.random.normal([1, 2, 10, 4])
    >>> local_attention(x, x, x, block_size=4, causal=True).shape
    TensorShape([1, 2, 10, 4])
    """
    key = query if key is None else key
    query, key, value = (tf.convert_to_tensor(x) for x in (query, key, value))
    length = size(query, 2)
    if isinstance(length, int) and key.shape[2] not in (None, length):
        raise ValueError(
            "Local attention needs as many keys as queries. "
            f"Received: query of length {length}, key of length {key.shape[2]}."
        )
    query *= query.shape[-1] ** -0.5
    logits = size(query, 0) * size(query, 1) * length * block_size * (2 * look_back + 1)
    return over_heads(
        lambda arguments: _local_attention(
            arguments, length, block_size, look_back, causal, dropout
        ),
        {"query": query, "key": key, "value": value, "relative_embeddings": relative_embeddings},
        {"query_mask": query_mask, "key_mask": key_mask, "seed": seed},
        logits,
        value.dtype,
    )


def _local_attention(arguments, length, block_size, look_back, causal, dropout):
    num_blocks = ceil_div(length, block_size)
    count = look_back + 1 if causal else 2 * look_back + 1
    offset = look_back * block_size

    def windows(x, fill=0):
        return overlapping_blocks(x, num_blocks, block_size, count, offset, fill)

    query = split_blocks(arguments["query"], num_blocks, block_size)
    allowed = windows(tf.ones([1, 1, length], tf.bool))[..., None]
    if causal:
        allowed &= tf.range(count * block_size)[:, None] - offset <= tf.range(block_size)
    if "key_mask" in arguments:
        allowed &= windows(tf.cast(arguments["key_mask"], tf.bool)[:, None])[..., None]
    if "query_mask" in arguments:
        query_mask = tf.cast(arguments["query_mask"], tf.bool)[:, None]
        allowed &= split_blocks(query_mask, num_blocks, block_size)[..., None, :]
    bias = None
    if "relative_embeddings" in arguments:
        bias = window_bias(query, arguments["relative_embeddings"], count * block_size, offset)
    output, _ = attend(
        query,
        windows(arguments["key"]),
        windows(arguments["value"]),
        allowed,
        bias=bias,
        dropout=dropout,
        seed=arguments.get("seed"),
    )
    return join_blocks(output, length)
