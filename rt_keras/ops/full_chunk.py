"""Full attention of a chunk of positions, given the cache of earlier ones."""

import tensorflow as tf

from rt_keras.ops.attend import MASKED, accumulation_dtype, attend, merge_sets
from rt_keras.ops.blocks import ceil_div, fold_heads, places_of_rows, repeat_heads, size
from rt_keras.ops.decode import check_position, write_chunk

# Number of keys that the queries of a chunk attend to at once, in longer caches.
KEYS_AT_ONCE = 1024


def full_chunk(
    query,
    key,
    value,
    cache,
    position,
    *,
    count=None,
    relative_embeddings=None,
    dropout=0.0,
    seed=None,
    return_logsumexp=False,
):
    """Computes causal `full_attention` of a chunk, given the cache of earlier positions.

    In caches of more than `KEYS_AT_ONCE` slots, keys are read in blocks up to the last position,
    and the attention to each block is merged with that to the blocks before it. The number of
    logits in memory therefore does not grow with the cache, and empty slots cost nothing. XLA
    cannot compile the gradient of this loop.

    Args:
        query: `[batch, heads, length, depth]`.
        key: `[batch, key_heads, length, depth]`.
        value: `[batch, key_heads, length, value_depth]`.
        cache: the cache of `full_cache`, `full_step` or of the last chunk, with room for this one.
        position: int scalar, the chunk's first position; or int `[batch]`, one for each row.
        count: int scalar or `[batch]`, number of the chunk's positions that are not padding, the
            first ones. Outputs of padding are undefined. Defaults to None, for no padding.
        dropout, seed: see `full_attention`.
        relative_embeddings: `[heads, 2 m + 1, depth]`; or None.
        return_logsumexp: bool, whether to also return the logsumexp of the logits. Defaults to
            False.

    Returns:
        `[batch, heads, length, value_depth]`, or a pair of it and the logsumexp
        `[batch, heads, length]`; and the cache with these positions added.

    Raises:
        ValueError: if the chunk is known to exceed the cache.

    >>> from rt_keras.ops.full_decode import full_cache
    >>> x = tf.random.normal([1, 2, 9, 4])
    >>> cache = full_cache(x[:, :, :4], x[:, :, :4], max_length=9)
    >>> rest = x[:, :, 4:]
    >>> output, cache = full_chunk(rest, rest, rest, cache, 4)
    >>> output.shape
    TensorShape([1, 2, 5, 4])
    """
    length, room, heads = size(query, 2), size(cache["key"], 2), query.shape[1]
    count = length if count is None else count
    check_position(tf.reduce_max(position + count) - 1, room)
    cache = write_chunk(cache, position, count, key=key, value=value)
    query = query * query.shape[3] ** -0.5
    own = places_of_rows(position, tf.range(length))
    # The query heads of one key head become more queries of it: fewer and larger products.
    key_heads = key.shape[1] if relative_embeddings is None and not dropout else heads

    def attend_keys(first, number, start=0, seed=seed):
        """Computes attention to some keys of the cache; those before `start` are masked."""
        places = first + tf.range(number)
        distance = own[:, :, None] - places
        bias = None
        if relative_embeddings is not None:
            bias = _relative(query, relative_embeddings, distance)
        allowed = ((distance >= 0) & (places >= start))[:, None]
        output, logsumexp = attend(
            fold_heads(query, key_heads),
            repeat_heads(_some(cache["key"], first, number), key_heads),
            repeat_heads(_some(cache["value"], first, number), key_heads),
            tf.tile(allowed, [1, 1, heads // key_heads, 1]),
            bias=bias,
            dropout=dropout,
            seed=seed,
        )
        return fold_heads(output, heads), fold_heads(logsumexp[..., None], heads)[..., 0]

    if not isinstance(room, int) or room <= KEYS_AT_ONCE:
        found = attend_keys(0, room)
    else:
        filled = tf.minimum(tf.reduce_max(position + count), room)
        found = _over_blocks(attend_keys, query, value.shape[3], room, filled, dropout, seed)
    return found if return_logsumexp else found[0], cache


def _over_blocks(attend_keys, query, value_depth, room, filled, dropout, seed):
    """Computes attention to the first `filled` keys, block by block."""
    blocks = ceil_div(room, KEYS_AT_ONCE)
    seeds = tf.random.split(seed, blocks) if dropout else None

    def attend_block(number, *before):
        start = number * KEYS_AT_ONCE
        # The last block is as long as the others, and overlaps the previous one if needed.
        first = tf.minimum(start, room - KEYS_AT_ONCE)
        of_block = None if seeds is None else seeds[number]
        found = attend_keys(first, KEYS_AT_ONCE, start, of_block)
        return number + 1, *merge_sets(before, found, return_logsumexp=True)

    shape = [size(query, axis) for axis in range(3)]
    nothing = (
        tf.zeros([*shape, value_depth], query.dtype),
        tf.fill(shape, tf.constant(MASKED, accumulation_dtype(query.dtype))),
    )
    _, *found = tf.while_loop(
        lambda number, *_: number * KEYS_AT_ONCE < filled,
        attend_block,
        (0, *nothing),
        maximum_iterations=blocks,
    )
    return tuple(found)


def _some(kept, first, number):
    """Slices `number` slots of a cache, starting at `first`."""
    shape = [size(kept, axis) for axis in range(4)]
    return tf.slice(kept, [0, 0, first, 0], [*shape[:2], number, shape[3]])


def _relative(query, embeddings, distance):
    """Computes relative logits at distances `[batch or 1, queries, keys]`, equal for all heads."""
    far = embeddings.shape[1] // 2
    rows = tf.clip_by_value(distance, -far, far) + far
    rows = tf.broadcast_to(rows, [size(query, 0), *(size(rows, axis) for axis in (1, 2))])
    products = tf.einsum("bhqd,hrd->bqhr", query, tf.cast(embeddings, query.dtype))
    return tf.transpose(tf.gather(products, rows, axis=3, batch_dims=2), [0, 2, 1, 3])
