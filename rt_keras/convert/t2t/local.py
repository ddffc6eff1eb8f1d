"""Local attention as in the authors' code."""

import tensorflow as tf

from rt_keras.convert.t2t.attend import attend
from rt_keras.convert.t2t.relative import relative_terms
from rt_keras.ops.attend import in_parts
from rt_keras.ops.blocks import join_blocks, of_one_length, size
from rt_keras.ops.caches import from_rows
from rt_keras.ops.local.neighborhood import Neighborhood
from rt_keras.ops.local.windows import WITHOUT_KEY_BLOCKS, LocalWindows, over_local_heads


def local_attention(
    query,
    key,
    value,
    *,
    block_size,
    look_back=1,
    grid=None,
    key_block_size=None,
    causal=False,
    query_mask=None,
    dropout=0.0,
    **shared,
):
    """Computes `rt_keras.ops.local_attention` as in the authors' code.

    Relative distances assume that the block of queries is the last in its window, even if the
    window extends beyond the block. Padded queries are not masked. A query without keys gets the
    mean of its window, including zeros beyond the edges.

    Args:
        query: `[batch, heads, length, depth]`.
        key: `[batch, heads, keys, depth]`, or None for the queries themselves.
        value: `[batch, heads, keys, value_depth]`.
        block_size, look_back, grid, key_block_size, causal, dropout: see
            `rt_keras.ops.local_attention`.
        query_mask: ignored, as in that code.
        **shared: `key_mask` and `seed`, as in that function; `token_bias`, `[batch, keys]`, added
            to the logits of each key; `relative_embeddings`, `[1, 2 m + 1, depth]`; and
            `relative_values`, `[1, 2 m + 1, value_depth]`. Each may be None.

    Returns:
        `[batch, heads, length, value_depth]`.

    Source: the code of Roy et al. 2021.

    >>> x = tf.random.normal([1, 2, 10, 4])
    >>> local_attention(x, x, x, block_size=4, causal=True).shape
    TensorShape([1, 2, 10, 4])
    """
    query, value = (tf.convert_to_tensor(x) for x in (query, value))
    key = query if key is None else tf.convert_to_tensor(key)
    if key_block_size is None:
        query, value = of_one_length(query, value, WITHOUT_KEY_BLOCKS)
    neighborhood = Neighborhood(block_size, look_back, grid, key_block_size, causal=causal)
    windows = LocalWindows(size(query, 2), size(key, 2), neighborhood)
    inputs = {"query": query, "key": key, "value": value}
    return over_local_heads(
        lambda arguments: _local_attention(arguments, windows, dropout),
        windows,
        inputs,
        {},
        shared,
        value.dtype,
    )


def _local_attention(arguments, windows, dropout):
    query = windows.of_queries(arguments["query"])
    key, value = windows.of_keys(arguments["key"]), windows.of_keys(arguments["value"])
    real, key_bias = windows.real_keys(size(arguments["key"], 2), arguments.get("key_mask")), None
    if "token_bias" in arguments:
        key_bias = windows.of_keys(tf.cast(arguments["token_bias"], query.dtype)[:, None])
    offset = key.shape[3] - windows.block_size

    def attend_rows(rows, seen, seed):
        of_rows, count = query[..., rows, :], len(range(key.shape[3])[seen])
        keys, values = key[..., seen, :], value[..., seen, :]
        allowed = (real[..., None, seen], *windows.masks(rows, count))
        bias = None if key_bias is None else key_bias[..., None, seen]
        terms = relative_terms(
            arguments, of_rows, count, offset + (rows.start or 0), windows.one_way, bias
        )
        return attend(of_rows, keys, values, allowed, dropout=dropout, seed=seed, **terms)

    # A query without keys needs all keys of its window, including later ones.
    in_order = windows.one_way and "key_mask" not in arguments
    output = in_parts(
        attend_rows, windows.block_size, in_order, windows.start, arguments.get("seed")
    )
    return join_blocks(output, size(arguments["query"], 2))


def as_last_block(keys, position, block_size):
    """Sets the distances of keys in a window as if the query's block were the last in it."""
    count = size(keys.key, 2)
    distance = from_rows(position % block_size, count - block_size - tf.range(count))
    return keys._replace(distance=distance)
