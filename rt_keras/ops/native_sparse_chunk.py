"""Native Sparse Attention of a chunk of positions, given the cache of earlier ones."""

import tensorflow as tf

from rt_keras.ops.attend import attend
from rt_keras.ops.blocks import ceil_div, fold_heads, places_of_rows, size, take_places
from rt_keras.ops.decode import check_position, pad_to, put_places, write, write_chunk
from rt_keras.ops.local import local_attention
from rt_keras.ops.native_sparse import attend_to_blocks, block_means, branch_seeds, gated_sum


def native_sparse_cache(key, value, *, max_length, block_size):
    """Returns the cache of `native_sparse_chunk`: keys, values, and their means in each block.

    Args:
        key: `[batch, key_heads, length, depth]`, from the first position. Each chunk overwrites its
            own positions and ignores later ones.
        value: `[batch, key_heads, length, value_depth]`.
        max_length: int, maximum length of the sequence.
        block_size: int, positions in a block.

    Returns:
        A dictionary of "key" and "value", `[batch, key_heads, blocks * block_size, ...]`, and of
        "key_mean" and "value_mean", `[batch, key_heads, blocks, ...]`. Means of blocks that have
        not ended are not read.

    >>> x = tf.random.normal([1, 2, 5, 4])
    >>> cache = native_sparse_cache(x, x, max_length=9, block_size=4)
    >>> cache["key"].shape[2], cache["key_mean"].shape[2]
    (12, 3)
    """
    places = ceil_div(max_length, block_size) * block_size
    kept = {"key": pad_to(key, places), "value": pad_to(value, places)}
    return {**kept, **block_means(**kept, block_size=block_size)}


def native_sparse_chunk(
    query,
    key,
    value,
    cache,
    position,
    *,
    gates,
    block_size,
    num_blocks,
    window_size,
    count=None,
    dropout=0.0,
    seed=None,
):
    """Computes `native_sparse_attention` of a chunk, given the cache of earlier positions.

    Args:
        query: `[batch, heads, length, depth]`. For a decode step, the length is 1.
        key: `[batch, key_heads, length, depth]`.
        value: `[batch, key_heads, length, value_depth]`.
        cache: the cache of `native_sparse_cache` or of the last chunk, with room for this one.
        position: int scalar, the chunk's first position; or int `[batch]`, one for each row.
        gates: `[batch, heads, length, 3]`; see `native_sparse_attention`.
        block_size, num_blocks, window_size: ints; see `native_sparse_attention`.
        count: int scalar or `[batch]`, number of the chunk's positions that are not padding, the
            first ones. Outputs of padding are undefined. Defaults to None, for no padding.
        dropout, seed: see `native_sparse_attention`.

    Returns:
        `[batch, heads, length, value_depth]`, and the cache with these positions added.

    Raises:
        ValueError: if the chunk is known to exceed the cache.

    >>> x, gates = tf.random.normal([1, 2, 20, 4]), tf.ones([1, 2, 20, 3])
    >>> cache = native_sparse_cache(x[:, :, :14], x[:, :, :14], max_length=20, block_size=4)
    >>> sizes = {"block_size": 4, "num_blocks": 3, "window_size": 5}
    >>> rest, gates = x[:, :, 14:], gates[:, :, 14:]
    >>> output, cache = native_sparse_chunk(rest, rest, rest, cache, 14, gates=gates, **sizes)
    >>> output.shape
    TensorShape([1, 2, 6, 4])
    """
    length = size(query, 2)
    count = length if count is None else count
    check_position(tf.reduce_max(position + count) - 1, size(cache["key"], 2))
    cache = _with_chunk(cache, key, value, position, count, block_size)
    seeds = branch_seeds(seed)
    own = places_of_rows(position, tf.range(length))
    window = _attend_to_window(query, cache, position, window_size, dropout, seeds[2])
    found = attend_to_blocks(query, cache, own, num_blocks, dropout, seeds[:2])
    return gated_sum(gates, *found, window), cache


def _with_chunk(cache, key, value, position, count, block_size):
    """Returns a cache with the positions of a chunk, and the means of blocks that end there."""
    length, total = size(key, 2), size(cache["key_mean"], 2)
    if length == 1:
        cache = write(cache, position, tf.reshape(count, [-1]), key=key, value=value)
    else:
        cache = write_chunk(cache, position, count, key=key, value=value)
    # The blocks that can end there.
    number = total
    if isinstance(length, int):
        number = min(ceil_div(length, block_size), total)
    position, count = places_of_rows(position, 0), places_of_rows(count, 0)
    block = position // block_size + tf.range(number)
    ended = (block < (position + count) // block_size) & (block < total)
    block %= total
    places = block[..., None] * block_size + tf.range(block_size)
    places = tf.reshape(places, [size(block, 0), -1])
    ends = {name: take_places(cache[name], places) for name in ("key", "value")}
    means = {
        name: tf.where(ended[:, None, :, None], x, take_places(cache[name], block))
        for name, x in block_means(**ends, block_size=block_size).items()
    }
    return put_places(cache, block, **means)


def _attend_to_window(query, cache, position, window_size, dropout, seed):
    """Computes the attention of a chunk that is in the cache to the windows of its queries."""
    length, places = size(query, 2), size(cache["key"], 2)
    width = min(window_size, places)
    # Keys from `width` positions before the chunk to its last one.
    place = places_of_rows(position, tf.range(width + length)) - width
    real = (place >= 0) & (place < places)
    place = tf.clip_by_value(place, 0, places - 1)
    key, value = (take_places(cache[name], place) for name in ("key", "value"))
    if not isinstance(length, int) or length > width:
        return local_attention(
            query,
            key,
            value,
            block_size=width,
            sliding_window=width,
            keys_before=width,
            causal=True,
            key_mask=real,
            dropout=dropout,
            seed=seed,
        )
    heads, key_heads = query.shape[1], key.shape[1]
    distance = tf.range(length)[:, None] + width - tf.range(width + length)
    allowed = (distance >= 0) & (distance < width) & real[:, None]
    # The query heads of one key head become more queries of it.
    output, _ = attend(
        fold_heads(query * query.shape[3] ** -0.5, key_heads),
        key,
        value,
        tf.tile(allowed[:, None], [1, 1, heads // key_heads, 1]),
        dropout=dropout,
        seed=seed,
    )
    return fold_heads(output, heads)
