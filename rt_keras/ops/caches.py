"""Rows of KV caches: how decode steps and chunks write them.

Every kind that can be decoded has a function `..._cache`, which builds the cache from the keys and
values of the prompt, and `..._step`, which adds one position to it and attends. A cache is a
dictionary of tensors with the batch on axis 0, so that beam search can repeat, reorder and drop
rows. Its size is fixed; keys that a query does not see yet, or no longer sees, are masked.
"""

import tensorflow as tf

from rt_keras.ops.blocks import places_of_rows, size, sizes, take_places


def from_rows(position, offsets):
    """Computes `position + offsets`, int `[...]`, or `[batch, 1, ...]` for positions `[batch]`.

    Args:
        position: int scalar, or int `[batch]`.
        offsets: int, or int `[n]`.
    """
    position = tf.convert_to_tensor(position)
    return position + offsets if position.shape.rank == 0 else position[:, None, None] + offsets


def numbers_of_slots(counts, length):
    """Returns the number of the entry in each slot of a ring, negative for empty slots.

    Entry n is in slot n modulo the ring's length.

    Args:
        counts: int `[...]`, the number of entries added so far.
        length: int, length of a ring.

    Returns:
        int `[..., length]`.

    >>> numbers_of_slots(tf.constant([2, 5]), 3).numpy().tolist()
    [[0, 1, -1], [3, 4, 2]]
    """
    last = tf.expand_dims(counts, -1) - 1
    return last - (last - tf.range(length)) % length


def write(cache, places, count=None, **rows):
    """Writes rows `[batch, heads, n, ...]` into a cache, at n slots of axis 2; see `put_rows`.

    Args:
        cache: dictionary of tensors.
        places: int `[batch, n]`, or `[1, n]` for the same slots in all rows of the batch.
        count: int scalar or `[batch]`, number of the rows to write, the first ones; None for all.
        **rows: the rows, by the names of the tensors.

    Returns:
        The updated cache.
    """
    places = places[:, None]
    written = {name: put_rows(cache[name], places, row, count) for name, row in rows.items()}
    return like({**cache, **written}, cache)


def write_chunk(cache, position, count=None, **chunks):
    """Writes a chunk `[batch, heads, length, depth]` into a cache, starting at a slot of axis 2.

    Args:
        cache: dictionary of tensors. Rows of a chunk beyond the last slot are dropped.
        position: int scalar or int `[batch]`, the slot of the chunk's first row.
        count: int scalar or int `[batch]`, number of the chunk's rows to write, the first ones;
            None for all.
        **chunks: the chunks, by the names of the tensors.

    Returns:
        The updated cache.
    """

    def written(x, chunk):
        length = size(chunk, 2)
        row = places_of_rows(-position, tf.range(size(x, 2)))  # [batch or 1, places]
        is_new = (row >= 0) & (row < places_of_rows(length if count is None else count, 0))
        chunk = take_places(tf.cast(chunk, x.dtype), tf.clip_by_value(row, 0, length - 1))
        return tf.where(is_new[:, None, :, None], chunk, x)

    return {**cache, **{name: written(cache[name], chunk) for name, chunk in chunks.items()}}


def where_counted(count, new, before):
    """Selects the new state in rows with a position that is not padding, else the old state.

    Args:
        count: int `[batch]`, 0 for rows whose positions are padding; None for no padding.
        new, before: tensors `[batch, ...]`, the state after and before the position.
    """
    if count is None:
        return new
    counts = tf.reshape(count > 0, [-1, *[1] * (before.shape.rank - 1)])
    return tf.where(counts, tf.cast(new, before.dtype), before)


def put_rows(x, places, new, count=None):
    """Writes rows into slots of axis 2.

    Inside a loop, XLA updates the rows in place: unlike an update of a slice, a scatter is not
    fused with the operations that read its result, which would then need the old tensor.

    Args:
        x: `[batch, heads, places, ...]`.
        places: int, broadcastable to `[batch, heads, n]`; of several rows, all inside.
        new: `[batch, heads, n, ...]`.
        count: int scalar or `[batch]`, number of the rows to write, the first ones; None for all.

    Returns:
        `[batch, heads, places, ...]`.
    """
    batch, heads, length, *inner = shape = sizes(x)
    flat = tf.reshape(x, [batch * heads * length, *inner])
    first = tf.reshape(tf.range(batch * heads) * length, [batch, heads, 1])
    if count is not None:
        # The slot of a row that is not written may be beyond the last one.
        places = tf.minimum(places, length - 1)
    index = tf.reshape(first + places, [-1, 1])  # [batch * heads * n, 1], of the flat rows
    new = tf.cast(new, x.dtype)
    if count is not None:
        before = tf.reshape(tf.gather_nd(flat, index), [batch, heads, -1, *inner])
        is_new = tf.range(size(new, 2)) < places_of_rows(count, 0)  # [batch or 1, n]
        is_new = tf.reshape(is_new, [-1, 1, size(new, 2), *[1] * len(inner)])
        new = tf.where(is_new, new, before)
    new = tf.reshape(new, [-1, *inner])
    return tf.reshape(tf.tensor_scatter_nd_update(flat, index, new), shape)


def like(cache, before):
    """Gives a cache the static shapes that it had before, as loops require."""
    return {name: tf.ensure_shape(x, before[name].shape) for name, x in cache.items()}


def pad_to(x, length):
    """Zero-pads or truncates `[batch, heads, n, depth]` to `length`."""
    x = x[:, :, :length]
    return tf.pad(x, [[0, 0], [0, 0], [0, length - size(x, 2)], [0, 0]])


def check_position(position, length, count=None):
    """Raises a ValueError if a position other than padding is known to be outside of a cache."""
    if count is not None:
        position = tf.where(count > 0, position, 0)
    known = tf.get_static_value(tf.reduce_max(position))
    if known is not None and isinstance(length, int) and not 0 <= known < length:
        raise ValueError(
            f"The cache holds {length} positions, 0 to {length - 1}. Received: position={known}"
        )
