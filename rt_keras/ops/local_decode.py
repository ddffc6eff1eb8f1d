"""Local attention of one position at a time: the blocks in view are kept."""

import itertools
import math

import tensorflow as tf

from rt_keras.ops.blocks import ceil_div, size, split_blocks
from rt_keras.ops.decode import attend_step, check_position, pad_to, with_bias, write
from rt_keras.ops.local import place_of_own_block


def local_cache(
    key, value, count, *, block_size, look_back=1, grid=None, max_length=None, token_bias=None
):
    """The cache of `local_step`: a ring of the blocks that a query can see.

    Position p is at place p modulo the ring's length, (look_back + 1) · block_size. On a grid,
    where blocks in view lie far apart, all positions are kept.

    Args:
        key: `[batch, heads, length, depth]`, of positions from the first on.
        value: `[batch, heads, length, value_depth]`.
        count: int scalar, how many of these positions count.
        block_size, look_back, grid: as of `local_attention`.
        max_length: how many positions there will be: a ring need not be longer. None for any.
        token_bias: `[batch, length]`, where steps will have one.

    Returns:
        A dictionary of "key" and "value", `[batch, heads, places, ...]`.

    >>> x = tf.random.normal([1, 2, 50, 4])
    >>> local_cache(x, x, 50, block_size=8)["key"].shape
    TensorShape([1, 2, 16, 4])
    """
    key = with_bias(key, token_bias)
    if grid is not None:
        length = math.prod(grid) * block_size
        return {"key": pad_to(key, length), "value": pad_to(value, length)}
    ring = (_first(look_back) + 1) * block_size
    if max_length is not None:
        ring = tf.minimum(ring, max_length) if tf.is_tensor(max_length) else min(ring, max_length)
    last = count - 1
    # The last position at each place; one before the first is masked by the step.
    held = tf.maximum(last - (last - tf.range(ring)) % ring, 0)
    return {"key": tf.gather(key, held, axis=2), "value": tf.gather(value, held, axis=2)}


def local_step(
    query,
    key,
    value,
    cache,
    position,
    *,
    block_size,
    look_back=1,
    grid=None,
    token_bias=None,
    relative_embeddings=None,
    relative_values=None,
    reference=False,
):
    """Causal `local_attention` of one position, given those before it.

    Args:
        query, key: `[batch, heads, 1, depth]`.
        value: `[batch, heads, 1, value_depth]`.
        cache: what `local_cache` or the last step gave.
        position: int scalar, which the query has.
        block_size, look_back, grid, reference: as of `local_attention`.
        token_bias: `[batch, 1]`, of the key.
        relative_embeddings: `[heads, 2 m + 1, depth]`.
        relative_values: `[heads, 2 m + 1, value_depth]`.

    Returns:
        `[batch, heads, 1, value_depth]`, and the cache with this position in it.

    >>> x = tf.random.normal([1, 2, 50, 4])
    >>> cache = local_cache(x, x, 49, block_size=8)
    >>> last = x[:, :, 49:]
    >>> output, cache = local_step(last, last, last, cache, 49, block_size=8)
    >>> output.shape
    TensorShape([1, 2, 1, 4])
    """
    length = size(cache["key"], 2)
    tables = {"relative_embeddings": relative_embeddings, "relative_values": relative_values}
    key = with_bias(key, token_bias)
    if grid is not None:
        check_position(position, length)
        cache = write(cache, position, key=key, value=value)
        output = _attend_window(
            query,
            cache,
            position,
            block_size=block_size,
            key_block_size=block_size,
            look_back=look_back,
            grid=grid,
            causal=True,
            reference=reference,
            **tables,
        )
        return output, cache
    cache = write(cache, position % length, key=key, value=value)
    age = (position - tf.range(length)) % length
    first = tf.maximum((position // block_size - _first(look_back)) * block_size, 0)
    allowed = age <= position - first
    return attend_step(query, cache["key"], cache["value"], allowed, age, **tables), cache


def local_cross_step(
    query,
    key,
    value,
    position,
    *,
    block_size,
    key_block_size=None,
    look_back=1,
    grid=None,
    key_mask=None,
    token_bias=None,
    relative_embeddings=None,
    relative_values=None,
    reference=False,
):
    """`local_attention` of one position to the blocks of another sequence.

    Args:
        query: `[batch, heads, queries, depth]`, any number of queries at the same position.
        key: `[batch, heads, keys, depth]`.
        value: `[batch, heads, keys, value_depth]`.
        position: int scalar.
        block_size, key_block_size, look_back, grid, reference: as of `local_attention`.
        key_mask: bool `[batch, keys]`, False for padding.
        token_bias: `[batch, keys]`.
        relative_embeddings: `[heads, 2 m + 1, depth]`.
        relative_values: `[heads, 2 m + 1, value_depth]`.

    Returns:
        `[batch, heads, queries, value_depth]`.

    >>> x = tf.random.normal([1, 2, 6, 4])
    >>> local_cross_step(x[:, :, :1], x, x, 7, block_size=4, key_block_size=2).shape
    TensorShape([1, 2, 1, 4])
    """
    key_block_size = key_block_size or block_size
    return _attend_window(
        query,
        {"key": with_bias(key, token_bias), "value": value},
        position,
        block_size=block_size,
        key_block_size=key_block_size,
        look_back=look_back,
        grid=grid or (ceil_div(size(key, 2), key_block_size),),
        causal=False,
        key_mask=key_mask,
        reference=reference,
        relative_embeddings=relative_embeddings,
        relative_values=relative_values,
    )


def _attend_window(
    query,
    kept,
    position,
    *,
    block_size,
    key_block_size,
    look_back,
    grid,
    causal,
    key_mask=None,
    reference=False,
    **tables,
):
    """Attention to the blocks around the query's own, read from all."""
    look_back = (look_back,) * len(grid) if isinstance(look_back, int) else tuple(look_back)
    after = (0 if causal else look_back[0], *look_back[1:])
    own = place_of_own_block(look_back, after)
    blocks, inside = _neighbours(position // block_size, grid, look_back, after)
    num_blocks = math.prod(grid)

    def window(x):
        x = tf.gather(split_blocks(x, num_blocks, key_block_size), blocks, axis=2)
        batch, heads, count, places, depth = (size(x, axis) for axis in range(5))
        return tf.reshape(x, [batch, heads, count * places, depth])

    real = tf.ones([1, size(kept["key"], 2)], tf.bool) if key_mask is None else key_mask
    real = window(tf.cast(real, tf.bool)[:, None, :, None])
    inside = tf.repeat(inside, key_block_size)
    allowed = tf.linalg.matrix_transpose(real) & inside
    key, value = window(kept["key"]), window(kept["value"])
    if reference:
        # What a query without keys gets the mean of.
        value = tf.where(inside[:, None], value, tf.zeros_like(value))
    places, place = tf.range(size(key, 2)), position % block_size
    if causal:
        allowed &= places - own * block_size <= place
    offset = size(key, 2) - block_size if reference else own * key_block_size
    return attend_step(
        query,
        key,
        value,
        allowed,
        offset + place - places,
        causal=causal,
        reference=reference,
        **tables,
    )


def _neighbours(block, grid, before, after):
    """The blocks in a block's window, and which of them lie on the grid; as `neighbour_blocks`."""
    place, found, inside = block, 0, True
    ranges = [range(-low, high + 1) for low, high in zip(before, after)]
    steps = tf.constant(list(itertools.product(*ranges)), tf.int32)
    stride = 1
    for axis in reversed(range(len(grid))):
        along = place % grid[axis] + steps[:, axis]
        place //= grid[axis]
        inside &= (along >= 0) & (along < grid[axis])
        found += along * stride
        stride *= grid[axis]
    return tf.where(inside, found, 0), inside


def _first(look_back):
    return look_back if isinstance(look_back, int) else look_back[0]
