"""Native Sparse Attention: means of all blocks, the most important blocks, and a window."""

import tensorflow as tf

from rt_keras.ops.attend import MASKED, accumulation_dtype, attend, drop
from rt_keras.ops.block_selection import GATHERED_AT_ONCE, SCORED_AT_ONCE, over_queries
from rt_keras.ops.block_tiles import attend_in_tiles, pays
from rt_keras.ops.blocks import ceil_div, pad_axis, places_of_rows, size, sizes
from rt_keras.ops.largest import indices_of_largest
from rt_keras.ops.local import local_attention


def native_sparse_attention(
    query,
    key,
    value,
    *,
    gates,
    block_size,
    num_blocks,
    window_size,
    query_mask=None,
    key_mask=None,
    dropout=0.0,
    seed=None,
):
    """Computes the sum of attention to means of blocks, to selected blocks and to a window.

    ```
    compressed_i = sum_g p_ig mean_value_g,    p_ig = softmax_g(query_i · mean_key_g / sqrt(depth))
    importance_ig = sum of p_ig over the query heads that share a key head
    output_i = gate_i1 compressed_i + gate_i2 selected_i + gate_i3 window_i
    ```

    Blocks are `block_size` consecutive positions. `compressed_i` is over the blocks g that end at
    position i or earlier, and 0 if there are none. `selected_i` is softmax attention to the keys up
    to i of `num_blocks` blocks: the block of i, the first block, the block before that of i, and
    those of the largest importance, of equal ones the first. If `num_blocks` is below 3, the first
    ones in this order are selected. Heads that share a key head select the same blocks. The
    selection has no gradient. `window_i` is softmax attention to the last `window_size` positions
    up to i. Output i depends on positions up to i alone.

    The cost is O(n · (n / block_size + num_blocks · block_size + window_size) · depth): importances
    of all blocks are computed for every query. If shapes are static, queries are processed some at
    a time, and selected blocks of 16 or more positions some heads at a time, in memory that grows
    as n · num_blocks · block_size. The gradient computes them again.

    Three things differ from the paper. Keys and values of a block are compressed by their mean, not
    by a learned network with position embeddings. The compressed blocks do not overlap and are the
    blocks that are selected. The branches share their keys and values. The blocks that are always
    selected are those of the paper.

    Args:
        query: `[batch, heads, length, depth]`.
        key: `[batch, key_heads, length, depth]`. Each key head serves heads / key_heads consecutive
            query heads.
        value: `[batch, key_heads, length, value_depth]`.
        gates: `[batch, heads, length, 3]`, the weights of `compressed`, `selected` and `window`.
        block_size: int, positions in a block.
        num_blocks: int, number of blocks that a query attends to.
        window_size: int, number of positions in a window, including that of the query.
        query_mask: bool `[batch, length]`, False for padding, whose output is 0; or None.
        key_mask: bool `[batch, length]`, False for padding, which no query sees and which does not
            count in means; or None.
        dropout: float, share of the attention weights set to 0. Defaults to 0.
        seed: int `[2]`, needed if `dropout` is above 0. Defaults to None.

    Returns:
        `[batch, heads, length, value_depth]` in the dtype of `value`.

    Raises:
        ValueError: if a size is below 1, queries and keys differ in length, or the number of key
            heads does not divide the number of heads.

    Source: Yuan et al. 2025, Native Sparse Attention: Hardware-Aligned and Natively Trainable
    Sparse Attention, section 3; means and shared keys: `naive_nsa` of flash-linear-attention.

    >>> x, gates = tf.random.normal([1, 4, 20, 8]), tf.ones([1, 4, 20, 3]) / 3
    >>> sizes = {"block_size": 4, "num_blocks": 3, "window_size": 5}
    >>> native_sparse_attention(x, x[:, :2], x[:, :2], gates=gates, **sizes).shape
    TensorShape([1, 4, 20, 8])
    """
    query, key, value, gates = map(tf.convert_to_tensor, (query, key, value, gates))
    check_sizes(block_size=block_size, num_blocks=num_blocks, window_size=window_size)
    _check_shapes(query, key)
    length = size(key, 2)
    width = min(window_size, max(length, 1)) if isinstance(length, int) else window_size
    real = None
    if key_mask is not None:
        real = tf.cast(key_mask, tf.bool)
        key, value = (tf.where(real[:, None, :, None], x, tf.zeros_like(x)) for x in (key, value))
    seeds = branch_seeds(seed)
    window = local_attention(
        query,
        key,
        value,
        block_size=width,
        sliding_window=width,
        causal=True,
        key_mask=real,
        dropout=dropout,
        seed=seeds[2],
    )
    compressed, selected = attend_to_blocks(
        query,
        _in_blocks(key, value, real, block_size),
        places_of_rows(0, tf.range(length)),
        num_blocks,
        dropout,
        seeds[:2],
    )
    output = gated_sum(gates, compressed, selected, window)
    if query_mask is None:
        return output
    return tf.where(tf.cast(query_mask, tf.bool)[:, None, :, None], output, tf.zeros_like(output))


def check_sizes(**sizes):
    """Raises a ValueError if a size is below 1.

    >>> check_sizes(block_size=4, num_blocks=0)
    Traceback (most recent call last):
    ...
    ValueError: num_blocks must be at least 1. Received: num_blocks=0
    """
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1. Received: {name}={value}")


def _check_shapes(query, key):
    """Raises a ValueError if queries cannot attend to these keys."""
    if None not in (query.shape[2], key.shape[2]) and query.shape[2] != key.shape[2]:
        raise ValueError(
            "Native Sparse Attention needs as many keys as queries. "
            f"Received: query of length {query.shape[2]}, key of length {key.shape[2]}."
        )
    if query.shape[1] % key.shape[1]:
        raise ValueError(
            "The number of key heads must divide the number of heads. "
            f"Received: {key.shape[1]} key heads for {query.shape[1]} heads."
        )


def branch_seeds(seed):
    """Returns the seeds of the three branches, all None without a seed."""
    return [None] * 3 if seed is None else tf.unstack(tf.random.split(seed, 3))


def gated_sum(gates, *branches):
    """Computes the sum of the branches `[batch, heads, length, value_depth]` with their gates."""
    dtype = accumulation_dtype(branches[0].dtype)
    gates = tf.unstack(tf.cast(gates, dtype)[..., None], axis=3)
    found = tf.add_n([gate * tf.cast(x, dtype) for gate, x in zip(gates, branches, strict=True)])
    return tf.cast(found, branches[0].dtype)


def _in_blocks(key, value, real, block_size):
    """Returns the blocks of `attend_to_blocks`; a sequence has at least one."""
    length = size(key, 2)
    count = ceil_div(length, block_size)
    count = max(count, 1) if isinstance(count, int) else tf.maximum(count, 1)
    missing = count * block_size - length
    found = {"key": pad_axis(key, 2, 0, missing), "value": pad_axis(value, 2, 0, missing)}
    if real is not None:
        found["real"] = pad_axis(real, 1, 0, missing)
    return {**found, **block_means(**found, block_size=block_size)}


def block_means(key, value, block_size, real=None):
    """Computes the means of the keys and of the values of each block.

    Args:
        key, value: `[batch, key_heads, blocks * block_size, ...]`.
        block_size: int.
        real: bool `[batch, blocks * block_size]`, False for keys that do not count, which must be
            0; None if all count. Defaults to None.

    Returns:
        A dictionary of "key_mean" and "value_mean", `[batch, key_heads, blocks, ...]`.

    >>> x = tf.reshape(tf.range(6.0), [1, 1, 6, 1])
    >>> block_means(x, x, 3)["key_mean"].numpy().ravel().tolist()
    [1.0, 4.0]
    """
    dtype = accumulation_dtype(key.dtype)
    count = tf.constant(block_size, dtype)
    if real is not None:
        real = tf.reshape(real, [size(real, 0), 1, -1, block_size, 1])
        count = tf.maximum(tf.reduce_sum(tf.cast(real, dtype), axis=3), 1)

    def means(x):
        batch, heads, places, depth = sizes(x)
        blocks = tf.reshape(x, [batch, heads, places // block_size, block_size, depth])
        return tf.cast(tf.reduce_sum(tf.cast(blocks, dtype), axis=3) / count, x.dtype)

    return {"key_mean": means(key), "value_mean": means(value)}


def attend_to_blocks(query, blocks, own, num_blocks, dropout=0.0, seeds=(None, None)):
    """Computes the attention to means of blocks and to selected blocks.

    Args:
        query: `[batch, heads, length, depth]`, not scaled.
        blocks: dictionary of "key" and "value", `[batch, key_heads, blocks * block_size, ...]`; of
            "key_mean" and "value_mean", see `block_means`; and optionally of "real", bool
            `[batch, blocks * block_size]`, False for keys that no query sees.
        own: int `[batch or 1, length]`, positions of the queries.
        num_blocks: int, see `native_sparse_attention`.
        dropout: float. Defaults to 0.
        seeds: the seeds of the two results. Defaults to None for both.

    Returns:
        `compressed` and `selected` of `native_sparse_attention`, both
        `[batch, heads, length, value_depth]`.
    """
    batch, heads, length, depth = sizes(query)
    (_, key_heads, places, value_depth), total = sizes(blocks["value"]), size(blocks["key_mean"], 2)
    block_size = places // total
    # The heads of a key head are consecutive.
    query = tf.reshape(query * depth**-0.5, [batch, key_heads, heads // key_heads, length, depth])
    given = {"query": tf.transpose(query, [0, 1, 3, 2, 4]), "own": own[:, None]}
    shared = {name: blocks[name] for name in ("key_mean", "value_mean")}
    real = blocks.get("real")
    if real is not None:
        in_blocks = tf.reshape(real, [size(real, 0), total, block_size])
        shared["real"] = tf.reduce_any(in_blocks, axis=2)
    compressed, block = over_queries(
        lambda part: _attend_to_means(part, block_size, num_blocks, dropout),
        given,
        {**shared, "seed": seeds[0]},
        heads * total,
        SCORED_AT_ONCE,
        (query.dtype, tf.int32),
    )
    of_blocks = {
        name: tf.reshape(
            tf.cast(blocks[name], query.dtype),
            [batch, key_heads, total, block_size, size(blocks[name], 3)],
        )
        for name in ("key", "value")
    }
    in_tiles = pays(block[:, :, :, None], of_blocks["key"])
    attend_selected = _attend_in_tiles if in_tiles else _attend_gathered
    selected = attend_selected(
        **given, block=block, **of_blocks, real=real, dropout=dropout, seed=seeds[1]
    )
    shape = [batch, heads, length, value_depth]
    return tuple(
        tf.reshape(tf.transpose(x, [0, 1, 3, 2, 4]), shape) for x in (compressed, selected)
    )


def _at_most(number, most):
    """Returns the smaller of two ints; a tensor if one is a tensor."""
    is_known = isinstance(number, int) and isinstance(most, int)
    return min(number, most) if is_known else tf.minimum(number, most)


def _attend_to_means(part, block_size, num_blocks, dropout):
    """Computes the attention of some queries to the means of blocks, and selects blocks.

    Args:
        part: dictionary of "query", `[batch, key_heads, length, queries, depth]`, scaled; "own",
            int `[batch or 1, 1, length]`; "key_mean" and "value_mean"; and optionally "real", bool
            `[batch, blocks]`, and "seed".
        block_size, num_blocks: ints.
        dropout: float.

    Returns:
        `[batch, key_heads, length, queries, value_depth]`, and the numbers of the selected blocks,
        int `[batch, key_heads, length, selected]`.
    """
    query, key, value = part["query"], part["key_mean"], part["value_mean"]
    batch, key_heads, length, queries, depth = sizes(query)
    dtype, total = accumulation_dtype(query.dtype), size(key, 2)
    flat = tf.reshape(query, [batch, key_heads, length * queries, depth])
    logits = tf.matmul(flat, tf.cast(key, query.dtype), transpose_b=True)
    logits = tf.reshape(tf.cast(logits, dtype), [batch, key_heads, length, queries, total])
    seen = (tf.range(total) + 1) * block_size <= part["own"][..., None] + 1
    if "real" in part:
        seen &= part["real"][:, None, None]
    seen = seen[..., None, :]
    weights = tf.nn.softmax(tf.where(seen, logits, tf.constant(MASKED, dtype)), axis=-1)
    weights = tf.where(seen, weights, tf.zeros_like(weights))
    block = _select(tf.stop_gradient(weights), part["own"] // block_size, num_blocks)
    weights = tf.cast(drop(weights, dropout, part.get("seed")), query.dtype)
    weights = tf.reshape(weights, [batch, key_heads, length * queries, total])
    output = tf.matmul(weights, tf.cast(value, query.dtype))
    return tf.reshape(output, [batch, key_heads, length, queries, size(value, 3)]), block


def _select(weights, last, num_blocks):
    """Returns the numbers of the selected blocks; see `native_sparse_attention`.

    Some blocks after the last one are returned if there are not enough others.

    Args:
        weights: `[batch, key_heads, length, queries, blocks]`, those of the means of blocks.
        last: int `[batch or 1, 1, length]`, the blocks of the queries.
        num_blocks: int.

    Returns:
        int `[batch, key_heads, length, selected]`.
    """
    queries, total = weights.shape[3], size(weights, 4)
    number, last = tf.range(total), last[..., None]
    importance = tf.reduce_sum(weights, axis=3)
    score = tf.where(number <= last, importance, -tf.ones_like(importance))
    # An importance is at most the number of queries.
    for rank, is_forced in enumerate((number == last - 1, number == 0, number == last)):
        score = tf.where(is_forced, tf.constant(queries + 1.0 + rank, score.dtype), score)
    return indices_of_largest(score, _at_most(num_blocks, total))[0]


def _attend_in_tiles(query, own, block, key, value, real, dropout, seed):
    """Computes what `_attend_gathered` does, with a block read once for many queries."""
    batch, _, total, block_size, _ = sizes(key)
    seen = tf.clip_by_value(own[..., None] + 1 - block * block_size, 0, block_size)
    shape = [*sizes(block)[:3], size(query, 3), size(block, 3)]
    block, seen = (tf.broadcast_to(x[..., None, :], shape) for x in (block, seen))
    if real is not None:
        real = tf.reshape(real, [size(real, 0), total, block_size])
    return attend_in_tiles(query, key, value, block, seen, real=real, dropout=dropout, seed=seed)[0]


def _attend_gathered(query, own, block, key, value, real, dropout, seed):
    """Computes the attention to the selected blocks, gathered for each query.

    Args:
        query: `[batch, key_heads, length, queries, depth]`, scaled.
        own: int `[batch or 1, 1, length]`, positions of the queries.
        block: int `[batch, key_heads, length, selected]`.
        key, value: `[batch, key_heads, blocks, block_size, ...]`.
        real: bool `[batch, blocks * block_size]`, False for keys that no query sees; or None.
        dropout: float.
        seed: int `[2]`, or None.

    Returns:
        `[batch, key_heads, length, queries, value_depth]`.
    """
    batch, key_heads, total, block_size, depth = sizes(key)
    value_depth = size(value, 4)
    # One row per block.
    rows = {
        name: tf.reshape(x, [batch * key_heads * total, -1])
        for name, x in (("key", key), ("value", value))
    }

    def read(part):
        block = part["block"]
        row = block + tf.reshape(tf.range(batch * key_heads) * total, [batch, key_heads, 1, 1])
        shape = [*sizes(block)[:3], size(block, 3) * block_size]
        key = tf.reshape(tf.gather(part["key"], row), [*shape, depth])
        value = tf.reshape(tf.gather(part["value"], row), [*shape, value_depth])
        place = tf.reshape(block[..., None] * block_size + tf.range(block_size), shape)
        allowed = place <= part["own"][..., None]
        if "real" in part:
            allowed &= tf.gather(part["real"], place, batch_dims=1)
        allowed = allowed[..., None, :]
        output, _ = attend(
            part["query"], key, value, allowed, dropout=dropout, seed=part.get("seed")
        )
        return output

    return over_queries(
        read,
        {"query": query, "own": own, "block": block},
        {**rows, "real": real, "seed": seed},
        key_heads * size(block, 3) * block_size * (depth + value_depth),
        GATHERED_AT_ONCE,
        query.dtype,
    )
