"""Attention to a window and to a compressed memory, one position at a time."""

import tensorflow as tf

from rt_keras.ops.attend import attend, merge_pair
from rt_keras.ops.blocks import places_of_rows, size, take_places
from rt_keras.ops.compressive import Memory, compressed
from rt_keras.ops.decode import attend_step, like, where_counted, write
from rt_keras.ops.local_decode import keys_in_view


def compressive_step(query, key, value, cache, position, *, count=None, **memory):
    """Computes `compressive_attention` of one position, given the cache of earlier ones.

    Args:
        query, key, value: `[batch, heads, 1, ...]`.
        cache: the cache of `compressive_cache`, or of the last chunk or step.
        position: int scalar, the query's position; or int `[batch]`, one for each row.
        count: int `[batch]`, 0 for rows whose position is padding: their cache is unchanged, and
            their outputs are undefined. Defaults to None, for no padding.
        **memory: the fields of `Memory`.

    Returns:
        `[batch, heads, 1, value_depth]`, and the cache with this position added.

    >>> from rt_keras.ops.compressive_chunk import compressive_cache
    >>> x = tf.random.normal([1, 2, 1, 4])
    >>> sizes = {"block_size": 8, "compressed_length": 4, "compression_rate": 4}
    >>> cache = compressive_cache(x, x, **sizes)
    >>> output, cache = compressive_step(x, x, x, cache, 0, **sizes)
    >>> output.shape
    TensorShape([1, 2, 1, 4])
    """
    memory, ring = Memory(**memory), size(cache["key"], 2)
    block_size, look_back = memory.block_size, memory.look_back
    rows = {"key": key, "value": value}
    if "usage" in cache:
        rows["usage"] = tf.zeros_like(value[..., :1])
    after = write(cache, position % ring, count, **rows)
    seen = keys_in_view(after, position, block_size, look_back, None)
    seen["relative_embeddings"] = memory.relative_embeddings
    local = attend_step(query, **seen, return_logsumexp=True)
    if "usage" in cache:
        of_keys = {**seen, "value": tf.eye(ring, dtype=value.dtype)[None, None]}
        weights = tf.linalg.matrix_transpose(attend_step(query, **of_keys))
        usage = after["usage"] + tf.cast(weights, after["usage"].dtype)
        after["usage"] = where_counted(count, usage, after["usage"])
    remembered = cache["memory_key"]
    if memory.memory_embeddings is not None:
        remembered += tf.cast(memory.memory_embeddings, remembered.dtype)
    of_memory = attend(
        query * query.shape[3] ** -0.5,
        remembered,
        cache["memory_value"],
        cache["memory_real"][:, None, None],
    )
    ended = tf.cast(places_of_rows(position, 1)[:, 0] % block_size == 0, tf.int32)
    ended *= 1 if count is None else count

    def with_one_block_more():
        """Adds the block that leaves the window to the memory, in rows whose own block ends."""
        places = places_of_rows((position // block_size - look_back) * block_size, 0)
        places += tf.range(block_size)
        block = {name: take_places(after[name], places % ring) for name in rows}
        new = compressed(block["key"], block["value"], places >= 0, block.get("usage"), memory)
        real = tf.broadcast_to(new["real"], [size(query, 0), memory.entries])
        moved = {"memory_real": tf.concat([after["memory_real"], real], 1)[:, memory.entries :]}
        for name in ("key", "value"):
            both = tf.concat([after[f"memory_{name}"], new[name]], axis=2)
            moved[f"memory_{name}"] = both[:, :, memory.entries :]
        return {name: where_counted(ended, x, after[name]) for name, x in moved.items()}

    kept = {name: x for name, x in after.items() if name.startswith("memory_")}
    kept = tf.cond(tf.reduce_any(ended > 0), with_one_block_more, lambda: kept)
    return merge_pair(local, of_memory), like({**after, **kept}, cache)
