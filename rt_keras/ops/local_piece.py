"""Local attention of several positions at a time, given the cache of those before them."""

import tensorflow as tf

from rt_keras.ops.blocks import pad_axis, places_of_rows, repeat_heads, size, take_places
from rt_keras.ops.decode import with_bias, without_bias
from rt_keras.ops.local import local_attention, per_dimension


def local_piece(
    query,
    key,
    value,
    cache,
    position,
    *,
    block_size,
    look_back=1,
    grid=None,
    count=None,
    token_bias=None,
    **options,
):
    """Causal `local_attention` of the positions of a piece, given those before it.

    What the cache keeps is put before the piece, so that blocks begin where they do in the whole
    sequence, and attention runs once over both.

    Args:
        query: `[batch, heads, length, depth]`.
        key: `[batch, key_heads, length, depth]`.
        value: `[batch, key_heads, length, value_depth]`.
        cache: the cache of `local_cache`, `local_step` or of the last piece.
        position: int scalar, the piece's first position; any, not only that of a block. Or int
            `[batch]`, if rows are at different positions.
        block_size: int, positions in a block.
        look_back: int, blocks before its own that a query sees. Defaults to 1.
        grid: must be None, as `local_step` has a grid.
        count: int scalar or `[batch]`, how many of the piece's positions count, the first ones;
            others are padding, whose outputs mean nothing. None, the default, for all.
        token_bias: `[batch, length]`, of the keys; or None.
        **options: `sliding_window`, `relative_embeddings`, `dropout`, `seed`, `return_logsumexp`,
            `activation`, `span` and `span_ramp` of `local_attention`.

    Returns:
        `[batch, heads, length, value_depth]`, or the pair of it and the logsumexp
        `[batch, heads, length]`; and the cache with these positions in it.

    Raises:
        ValueError: if there is a grid, whose blocks do not follow one another.

    >>> from rt_keras.ops.local_decode import local_cache
    >>> x = tf.random.normal([1, 2, 50, 4])
    >>> cache = local_cache(x, x, 30, block_size=8)
    >>> rest = x[:, :, 30:]
    >>> output, cache = local_piece(rest, rest, rest, cache, 30, block_size=8)
    >>> output.shape
    TensorShape([1, 2, 20, 4])
    """
    if grid is not None:
        raise ValueError(f"Blocks on a grid are not attended to in pieces. Received: grid={grid}")
    length, ring = size(query, 2), size(cache["key"], 2)
    count = length if count is None else count
    seen = per_dimension(look_back, (1,))[0] * block_size
    before = seen + block_size
    # The ring in the order of positions, which ends right before the piece.
    order = places_of_rows(position, tf.range(ring)) % ring

    def joined(kept, new):
        kept = pad_axis(take_places(kept, order), 2, before - ring, 0)
        return tf.concat([kept, tf.cast(new, kept.dtype)], axis=2)

    keys = joined(cache["key"], with_bias(key, token_bias))
    values = joined(cache["value"], value)
    # From the first block in view on: it begins `inside` after what is kept does.
    inside = block_size - position % block_size
    total = before + length

    def aligned(x):
        x = pad_axis(x, 2, 0, block_size)
        return take_places(x, places_of_rows(inside, tf.range(total)))

    places = places_of_rows(position - before + inside, tf.range(total))
    real = (places >= 0) & (places < places_of_rows(position + count, 0))
    key, bias = without_bias(aligned(keys), query.shape[3])
    heads = query.shape[1]
    found = local_attention(
        aligned(pad_axis(query, 2, before, 0)),
        repeat_heads(key, heads),
        repeat_heads(aligned(values), heads),
        block_size=block_size,
        look_back=look_back,
        causal=True,
        key_mask=real,
        token_bias=bias,
        **options,
    )
    of_piece = places_of_rows(before - inside, tf.range(length))
    output = tf.nest.map_structure(lambda x: take_places(x, of_piece), found)
    # The last position at each place of the ring; steps mask those before the first.
    age = places_of_rows(position + count - 1, -tf.range(ring)) % ring
    held = tf.maximum(places_of_rows(before + count - 1, -age), 0)
    return output, {"key": take_places(keys, held), "value": take_places(values, held)}
