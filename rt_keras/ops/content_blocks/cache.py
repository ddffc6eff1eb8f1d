"""Attention to selected blocks of keys, one chunk of positions at a time."""

import functools

import tensorflow as tf

from rt_keras.ops.attend import no_attention
from rt_keras.ops.blocks import ceil_div, pad_axis, places_of_rows, size, smaller, take_places
from rt_keras.ops.caches import check_position, numbers_of_slots, pad_to, write, write_chunk
from rt_keras.ops.content_blocks.attend import (
    are_not_first,
    attend_to_best,
    check_memory_length,
    counts_in_segments,
    counts_of_blocks,
    in_order,
    order_of_segments,
    reach_of,
    summarize,
)
from rt_keras.ops.content_blocks.select import Blocks
from rt_keras.ops.slices import gradients_of

# Chunks read the first segments, so many or twice, four times, ... as many, and no later ones.
FEWEST_SEGMENTS = 8


def selected_blocks_cache(
    key,
    value,
    count=None,
    *,
    max_length,
    options,
):
    """Returns the cache of `selected_blocks_chunk`.

    Keys and values of segments that have ended are in the order of their blocks, others in their
    original order. With a `memory_length`, the cache is a ring, in which position p is at place
    p modulo `places`. Otherwise it is at place p.

    Args:
        key: `[batch, key_heads, length, depth]`, keys of the first positions.
        value: `[batch, key_heads, length, value_depth]`.
        count: int scalar or `[batch]`, number of positions, the first ones; the others are padding.
            Defaults to None, for no padding.
        max_length: int, maximum number of positions. Not used with a `memory_length`.
        options: the `BlockOptions`.

    Returns:
        A dictionary of "key" and "value", `[batch, key_heads, places, ...]`; of "mean" and
        "variance" of the keys of each block, `[batch, key_heads, blocks, depth]`; and, if segments
        have nodes, of "node_mean" and "node_variance", `[batch, key_heads, nodes, depth]`.
    """
    check_memory_length(options.memory_length, options.segment_size)
    places = ceil_div(max_length, options.segment_size) * options.segment_size
    if options.is_ring:
        places = options.places_of_ring
    no_key, no_value = key[:, :, :0], value[:, :, :0]
    empty = {"key": pad_to(no_key, places), "value": pad_to(no_value, places)}
    for keys, names in options.levels.items():
        empty |= dict.fromkeys(names, pad_to(no_key, places // keys))
    count = size(key, 2) if count is None else count
    if size(key, 2) == 0 or (isinstance(count, int) and count == 0):
        return empty
    if not options.is_ring:
        key, value = key[:, :, :places], value[:, :, :places]
    return _with_prompt(empty, key, value, count, options)


def selected_blocks_chunk(
    query,
    key,
    value,
    cache,
    position,
    options,
    *,
    count=None,
    dropout=0.0,
    seed=None,
):
    """Computes causal `selected_blocks_attention` of a chunk, given the previous positions.

    Args:
        query: `[batch, heads, length, depth]`. For a decode step, the length is 1.
        key: `[batch, key_heads, length, depth]`.
        value: `[batch, key_heads, length, value_depth]`.
        cache: cache from `selected_blocks_cache` or from the last chunk. Without a `memory_length`,
            it must have room for this chunk.
        position: int scalar, position of the first token; or int `[batch]`, one for each row.
        count: int scalar or `[batch]`, number of positions of the chunk, the first ones; the others
            are padding, whose outputs are undefined. Defaults to None, for no padding.
        options: the `BlockOptions`.
        dropout, seed: see `selected_blocks_attention`.

    Returns:
        Tuple of a tuple of `[batch, heads, length, value_depth]` and the logsumexp of the logits,
        `[batch, heads, length]`, and the cache with these positions.

    Raises:
        ValueError: if the chunk is known to exceed the cache, or the cache is not that of the
            `memory_length`.

    >>> x = tf.random.normal([1, 2, 40, 4])
    >>> from rt_keras.ops.content_blocks.select import BlockOptions
    >>> options = BlockOptions(block_size=2, num_blocks=3, segment_size=8, window=(8, 1))
    >>> cache = selected_blocks_cache(x[:, :, :30], x[:, :, :30], max_length=40, options=options)
    >>> rest = x[:, :, 30:]
    >>> (output, _), cache = selected_blocks_chunk(rest, rest, rest, cache, 30, options)
    >>> output.shape
    TensorShape([1, 2, 10, 4])
    """
    length, places = size(query, 2), size(cache["key"], 2)
    count = length if count is None else count
    read = functools.partial(_read, options, dropout)
    if not options.is_ring:
        check_position(tf.reduce_max(position + count) - 1, places)
        return read(seed, query, key, value, cache, position, count)
    if places != options.places_of_ring:
        raise ValueError(
            f"With memory_length={options.memory_length}, the cache must have "
            f"{options.places_of_ring} places. Received: {places}"
        )
    # A longer slice would overwrite keys that its first queries may select.
    outputs, starts = [], range(0, length, options.slice_length)
    seeds = [seed] * len(starts)
    if seed is not None and len(starts) > 1:
        seeds = tf.unstack(tf.random.split(seed, len(starts)))
    for start, seed in zip(starts, seeds, strict=True):
        rows = [x[:, :, start : start + options.slice_length] for x in (query, key, value)]
        here = tf.clip_by_value(count - start, 0, size(rows[0], 2))
        output, cache = read(seed, *rows, cache, position + start, here)
        outputs.append(output)
    return tuple(tf.concat(x, axis=2) for x in zip(*outputs)), cache


def _read(options, dropout, seed, query, key, value, cache, position, count):
    """Adds positions to the cache, and computes their attention; see `selected_blocks_chunk`."""
    cache = _with_chunk(cache, key, value, position, count, options)
    positions = places_of_rows(position, tf.range(size(query, 2)))
    reach = reach_of(positions, options, causal=True)
    number, segment_size, places = None, options.segment_size, size(cache["key"], 2)
    if options.is_ring:
        ended = tf.reshape((position + count) // segment_size, [-1])
        segment = numbers_of_slots(ended, places // segment_size)  # [batch or 1, segments]
        number = _parts_of(segment, segment_size // options.block_size)
        first = options.num_first_tokens - segment * segment_size
        keys = segment_size - tf.clip_by_value(first, 0, segment_size)
        counts = counts_in_segments(keys, options)
    else:
        real = are_not_first(places, options.num_first_tokens)
        counts = counts_of_blocks(real, options)
    nodes = cache.get("node_mean"), cache.get("node_variance")
    summaries = cache["mean"], cache["variance"], *nodes
    blocks = Blocks(cache["key"], cache["value"], *summaries, counts, number)
    return _attend(query, blocks, reach, options, dropout, seed), cache


def _attend(query, blocks, reach, options, dropout, seed):
    """Computes attention to the first segments, as few as hold all blocks within reach."""
    per_segment = options.segment_size // options.block_size
    total = size(blocks.key, 2) // options.segment_size

    def attend_to_none(query, key, value):
        return no_attention(query, value)

    def attend_to_first(number, query, key, value):
        first = blocks._replace(key=key, value=value)
        if number is not total:
            first = _first_segments(first, number, options)
        return attend_to_best(query, first, reach, options, dropout, seed)

    # The segments of a ring are in no order. A single query takes longer to compile for each number
    # of segments than it saves.
    in_one_way = options.is_ring or query.shape[2] == 1
    numbers = [total] if in_one_way else _doubled_up_to(total)
    needed = ceil_div(tf.reduce_max(reach.before), per_segment)
    larger = sum(tf.cast(needed > number, tf.int32) for number in numbers[:-1])
    index = tf.where(needed > 0, 1 + larger, 0)
    functions = [attend_to_none, *(functools.partial(attend_to_first, x) for x in numbers)]
    return _switch(index, functions, query, blocks.key, blocks.value)


def _first_segments(blocks, number, options):
    """Returns the `Blocks` of the first options."""
    keys = number * options.segment_size
    first = {name: getattr(blocks, name)[:, :, :keys] for name in ("key", "value")}
    for keys_of_each, names in options.levels.items():
        first |= {name: getattr(blocks, name)[:, :, : keys // keys_of_each] for name in names}
    return blocks._replace(**first, counts=blocks.counts[:, : keys // options.block_size])


def _doubled_up_to(segments):
    """Returns numbers of segments, of which the smallest that is enough is read.

    >>> _doubled_up_to(50), _doubled_up_to(10)
    ([8, 16, 32, 50], [8, 10])
    """
    numbers = []
    if isinstance(segments, int):
        numbers = [FEWEST_SEGMENTS * 2**i for i in range(segments.bit_length())]
    return [*(number for number in numbers if number < segments), segments]


def _switch(index, functions, *inputs):
    """Computes one of several functions of floating-point tensors. The gradient computes it again.

    XLA cannot compile the gradient of `tf.switch_case` if the functions compute shapes.
    """

    @tf.custom_gradient
    def computed(*inputs):
        def gradient(*upstream):
            every = [functools.partial(gradients_of, x, inputs, upstream) for x in functions]
            return tf.switch_case(index, every)

        return tf.switch_case(index, [functools.partial(x, *inputs) for x in functions]), gradient

    return computed(*inputs)


def _parts_of(segment, parts):
    """Returns the numbers of the parts of each segment, int `[batch or 1, segments * parts]`.

    Args:
        segment: int `[batch or 1, segments]`.
        parts: int, number of parts in a segment, such as blocks or positions.

    >>> _parts_of(tf.constant([[4, 0]]), 2).numpy().tolist()
    [[8, 9, 0, 1]]
    """
    numbers = segment[..., None] * parts + tf.range(parts)
    return tf.reshape(numbers, [size(segment, 0), size(segment, 1) * parts])


def _with_prompt(cache, key, value, count, options):
    """Returns an empty cache with the last segments of the first positions that it has room for."""
    length, segment_size = size(key, 2), options.segment_size
    count = tf.minimum(places_of_rows(count, 0), length)
    number = smaller(ceil_div(length, segment_size), size(cache["key"], 2) // segment_size)
    segment = tf.maximum(ceil_div(count, segment_size) - number, 0) + tf.range(number)
    rows = _parts_of(segment, segment_size)  # [batch or 1, number * segment_size]
    real = (rows < count)[:, None, :, None]

    def in_segments(x):
        x = take_places(pad_axis(x, 2, 0, -length % segment_size), rows)
        return tf.where(real, x, tf.zeros_like(x))

    ended = segment < count // segment_size
    return _with_segments(cache, in_segments(key), in_segments(value), segment, ended, options)


def _with_chunk(cache, key, value, position, count, options):
    """Returns a cache with the positions of a chunk, and with blocks of segments that end there."""
    length, places = size(key, 2), size(cache["key"], 2)
    segment_size = options.segment_size
    if length == 1 or options.is_ring:
        rows = places_of_rows(position, tf.range(length)) % places
        cache = write(cache, rows, count, key=key, value=value)
    else:
        cache = write_chunk(cache, position, count, key=key, value=value)
    # The segments that can end there.
    number = smaller(ceil_div(length, segment_size), places // segment_size)
    position, count = places_of_rows(position, 0), places_of_rows(count, 0)
    segment = position // segment_size + tf.range(number)
    ended = segment < (position + count) // segment_size
    if not options.is_ring:
        ended &= segment < places // segment_size
    rows = _parts_of(segment, segment_size) % places
    key, value = (take_places(cache[name], rows) for name in ("key", "value"))
    return _with_segments(cache, key, value, segment, ended, options)


def _with_segments(cache, key, value, segment, ended, options):
    """Returns a cache with some segments, of which those that have ended are in blocks.

    Args:
        cache: see `selected_blocks_cache`.
        key, value: `[batch, key_heads, segments * segment_size, ...]`, in the order of positions.
        segment: int `[batch or 1, segments]`, the numbers of the segments.
        ended: bool `[batch or 1, segments]`.
        options: the `BlockOptions`.
    """
    places, segment_size = size(cache["key"], 2), options.segment_size
    rows = _parts_of(segment, segment_size)
    real = rows >= options.num_first_tokens
    shape = [size(key, 0), size(key, 1), size(segment, 1), segment_size]
    as_it_is = tf.broadcast_to(tf.range(segment_size), shape)

    def order_of_ended():
        order = order_of_segments(key, real, options)
        return tf.where(ended[:, None, :, None], order, as_it_is)

    order = tf.cond(tf.reduce_any(ended), order_of_ended, lambda: as_it_is)
    key, value = in_order(key, order), in_order(value, order)
    cache = write(cache, rows % places, key=key, value=value)
    counts = counts_of_blocks(real, options)
    summaries = summarize(key, counts, options.block_size, len(options.levels) > 1)
    for (keys, names), pair in zip(options.levels.items(), (summaries[:2], summaries[2:])):
        parts = segment_size // keys
        numbers = _parts_of(segment, parts) % (places // keys)
        is_new = tf.repeat(ended, parts, axis=1)[:, None, :, None]
        rows = {
            name: tf.where(is_new, summary, take_places(cache[name], numbers))
            for name, summary in zip(names, pair)
        }
        cache = write(cache, numbers, **rows)
    return cache
