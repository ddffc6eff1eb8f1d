"""Attention to a window and to a compressed memory, one chunk at a time."""

import tensorflow as tf

from rt_keras.ops.blocks import places_of_rows, size, take_places
from rt_keras.ops.compressive import Memory, attend_to_memory
from rt_keras.ops.local_chunk import JoinedChunk


def compressive_cache(query, value, **memory):
    """Builds the cache of `compressive_chunk` before the first position.

    Args:
        query: `[batch, heads, length, depth]`; only its shape is used.
        value: `[batch, key_heads, length, value_depth]`; only its shape and dtype are used.
        **memory: the fields of `Memory`.

    Returns:
        A dictionary of "key" and "value", `[batch, heads, places, ...]`, a ring buffer of the
        blocks in the window; "memory_key" and "memory_value",
        `[batch, heads, compressed_length, ...]`; "memory_real", bool `[batch, compressed_length]`,
        False for entries that no query sees; and with "most_used", "usage",
        `[batch, heads, places, 1]`.
    """
    memory, batch = Memory(**memory), size(query, 0)
    ring, entries = (memory.look_back + 1) * memory.block_size, memory.compressed_length

    def zeros(places, depth):
        return tf.zeros([batch, query.shape[1], places, depth], value.dtype)

    cache = {"memory_real": tf.zeros([batch, entries], tf.bool)}
    for name, depth in (("key", query.shape[3]), ("value", value.shape[3])):
        cache |= {name: zeros(ring, depth), f"memory_{name}": zeros(entries, depth)}
    if memory.compression == "most_used":
        cache["usage"] = zeros(ring, 1)
    return cache


def compressive_chunk(
    query, key, value, cache, position, *, count=None, dropout=0.0, seed=None, **memory
):
    """Computes `compressive_attention` of a chunk, given the cache of earlier positions.

    Args:
        query, key, value: `[batch, heads, length, ...]`.
        cache: the cache of `compressive_cache` or of the last chunk.
        position: int scalar, the chunk's first position; or int `[batch]`, one for each row.
        count: int scalar or `[batch]`, number of the chunk's positions that are not padding, the
            first ones. Outputs of padding are undefined. Defaults to None, for no padding.
        dropout, seed: see `compressive_attention`.
        **memory: the fields of `Memory`.

    Returns:
        `[batch, heads, length, value_depth]`, and the cache with these positions added.

    >>> x = tf.random.normal([1, 2, 20, 4])
    >>> sizes = {"block_size": 8, "compressed_length": 4, "compression_rate": 4}
    >>> cache = compressive_cache(x, x, **sizes)
    >>> output, cache = compressive_chunk(x, x, x, cache, 0, **sizes)
    >>> output.shape
    TensorShape([1, 2, 20, 4])
    """
    memory, block_size = Memory(**memory), memory["block_size"]
    length, ring = size(query, 2), size(cache["key"], 2)
    joined = JoinedChunk(position, count, length, ring, block_size, memory.look_back)
    given = {"key": key, "value": value}
    if "usage" in cache:
        given["usage"] = tf.zeros([size(query, 0), query.shape[1], length, 1], query.dtype)
    sequences = {name: joined.join(cache[name], x) for name, x in given.items()}
    aligned = {name: joined.align(x) for name, x in sequences.items()}
    kept = {name: cache[f"memory_{name}"] for name in ("key", "value", "real")}
    output, entries, usage = attend_to_memory(
        {"usage": None, **aligned, "query": joined.align_queries(query), "real": joined.real},
        kept,
        memory,
        # Cached positions have no queries.
        first_query=joined.before - joined.start,
        dropout=dropout,
        seed=seed,
    )
    changed = {name: joined.ring_of(sequences[name]) for name in ("key", "value")}
    if usage is not None:
        changed["usage"] = joined.ring_of_aligned(usage)
    # The memory ends where the window begins.
    now = position + (length if count is None else count)
    blocks = now // block_size - position // block_size
    places = places_of_rows(blocks * memory.entries, tf.range(memory.compressed_length))
    for name in ("key", "value"):
        changed[f"memory_{name}"] = take_places(entries[name], places)
    changed["memory_real"] = take_places(entries["real"][:, None], places)[:, 0]
    return joined.of_chunk(output), {
        name: tf.cast(x, cache[name].dtype) for name, x in changed.items()
    }
