"""Full attention of several positions at a time, given the cache of those before them."""

import tensorflow as tf

from rt_keras.ops.attend import MASKED, accumulation_dtype, attend, merge_pair
from rt_keras.ops.blocks import (
    ceil_div,
    fold_heads,
    places_of_rows,
    repeat_heads,
    size,
)
from rt_keras.ops.decode import check_position, write_chunk

# Keys that the queries of a chunk are compared with at once, of longer caches.
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
    activation="softmax",
    return_logsumexp=False,
):
    """Causal `full_attention` of the positions of a chunk, given those before it.

    Keys are read in blocks, as far as there are any, and each block's part of the softmax is joined
    with those before it. So memory grows with neither length, and places of the cache that are
    still empty cost nothing. Other activations need all keys at once. XLA does not compile the
    gradient of this loop, which caches of more than `KEYS_AT_ONCE` places have.

    Args:
        query: `[batch, heads, length, depth]`.
        key: `[batch, key_heads, length, depth]`.
        value: `[batch, key_heads, length, value_depth]`.
        cache: the cache of `full_cache`, `full_step` or of the last chunk, with room for this one.
        position: int scalar, the chunk's first position; or int `[batch]`, that of each row.
        count: int scalar or `[batch]`, how many of the chunk's positions count, the first ones;
            others are padding, whose outputs mean nothing. None, the default, for all.
        relative_embeddings: `[heads, 2 m + 1, depth]`; or None.
        dropout, seed, activation: see `full_attention`.
        return_logsumexp: bool, whether to return the logsumexp of the logits too. Defaults to
            False.

    Returns:
        `[batch, heads, length, value_depth]`, or the pair of it and the logsumexp
        `[batch, heads, length]`; and the cache with these positions in it.

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
    # The heads of one key head are more queries of it: fewer and larger products.
    key_heads = key.shape[1] if relative_embeddings is None and not dropout else heads

    def attend_keys(first, number, start=0, seed=seed):
        """Attention to some keys of the cache, of which those before `start` do not count."""
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
            activation=activation,
        )
        if logsumexp is not None:
            logsumexp = fold_heads(logsumexp[..., None], heads)[..., 0]
        return fold_heads(output, heads), logsumexp

    if activation != "softmax" or not isinstance(room, int) or room <= KEYS_AT_ONCE:
        found = attend_keys(0, room)
    else:
        filled = tf.minimum(tf.reduce_max(position + count), room)
        found = _over_blocks(attend_keys, query, value.shape[3], room, filled, dropout, seed)
    return found if return_logsumexp else found[0], cache


def _over_blocks(attend_keys, query, value_depth, room, filled, dropout, seed):
    """Attention to the first `filled` keys, block by block."""
    blocks = ceil_div(room, KEYS_AT_ONCE)
    seeds = tf.random.split(seed, blocks) if dropout else None

    def attend_block(number, *before):
        start = number * KEYS_AT_ONCE
        # The last block, too, is as long as the others.
        first = tf.minimum(start, room - KEYS_AT_ONCE)
        of_block = None if seeds is None else seeds[number]
        found = attend_keys(first, KEYS_AT_ONCE, start, of_block)
        return number + 1, *merge_pair(before, found, return_logsumexp=True)

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
    """Some of the places of a cache."""
    shape = [size(kept, axis) for axis in range(4)]
    return tf.slice(kept, [0, 0, first, 0], [*shape[:2], number, shape[3]])


def _relative(query, embeddings, distance):
    """Relative logits at distances `[batch or 1, queries, keys]`, the same for all heads."""
    far = embeddings.shape[1] // 2
    rows = tf.clip_by_value(distance, -far, far) + far
    rows = tf.broadcast_to(rows, [size(query, 0), *(size(rows, axis) for axis in (1, 2))])
    products = tf.einsum("bhqd,hrd->bqhr", query, tf.cast(embeddings, query.dtype))
    return tf.transpose(tf.gather(products, rows, axis=3, batch_dims=2), [0, 2, 1, 3])
