"""Local attention of a chunk of positions, given the cache of earlier ones."""

import tensorflow as tf

from rt_keras.ops.blocks import pad_axis, places_of_rows, size, take_places
from rt_keras.ops.local import local_attention, per_dimension


def local_chunk(
    query, key, value, cache, position, *, block_size, look_back=1, grid=None, count=None, **options
):
    """Computes causal `local_attention` of a chunk, given the cache of earlier positions.

    The cached positions are put before the chunk, so that blocks begin where they do in the whole
    sequence, and attention runs once over both.

    Args:
        query: `[batch, heads, length, depth]`.
        key: `[batch, key_heads, length, depth]`.
        value: `[batch, key_heads, length, value_depth]`.
        cache: the cache of `local_cache`, `local_step` or of the last chunk.
        position: int scalar, the chunk's first position; or int `[batch]`, one for each row. It
            need not be the first of a block.
        block_size: int, positions in a block.
        look_back: int, number of blocks before its own that a query sees. Defaults to 1.
        grid: must be None; only `local_step` supports a grid.
        count: int scalar or `[batch]`, number of the chunk's positions that are not padding, the
            first ones. Outputs of padding are undefined. Defaults to None, for no padding.
        **options: `sliding_window`, `relative_embeddings`, `dropout`, `seed` and
            `return_logsumexp` of `local_attention`.

    Returns:
        `[batch, heads, length, value_depth]`, or a pair of it and the logsumexp
        `[batch, heads, length]`; and the cache with these positions added.

    Raises:
        ValueError: if there is a grid, since its blocks in view are not consecutive.

    >>> from rt_keras.ops.local_decode import local_cache
    >>> x = tf.random.normal([1, 2, 50, 4])
    >>> cache = local_cache(x, x, 30, block_size=8)
    >>> rest = x[:, :, 30:]
    >>> output, cache = local_chunk(rest, rest, rest, cache, 30, block_size=8)
    >>> output.shape
    TensorShape([1, 2, 20, 4])
    """
    if grid is not None:
        raise ValueError(f"local_chunk does not support a grid. Received: grid={grid}")
    length, ring = size(query, 2), size(cache["key"], 2)
    look_back = per_dimension(look_back, (1,))[0]
    joined = JoinedChunk(position, count, length, ring, block_size, look_back)
    keys = joined.join(cache["key"], key)
    values = joined.join(cache["value"], value)
    # The first blocks in view have no queries. With dropout they are computed anyway, because what
    # a seed drops depends on the number of blocks.
    before = 0 if options.get("dropout") else look_back * block_size
    found = local_attention(
        joined.align_queries(query, before),
        joined.align(keys),
        joined.align(values),
        block_size=block_size,
        look_back=look_back,
        keys_before=before,
        causal=True,
        key_mask=joined.real,
        **options,
    )
    output = tf.nest.map_structure(lambda x: joined.of_chunk(x, before), found)
    return output, {"key": joined.ring_of(keys), "value": joined.ring_of(values)}


class JoinedChunk:
    """The positions in a ring buffer, joined with a chunk and aligned to blocks of the sequence.

    Position p of the sequence is in slot p modulo the ring's length. In the joined sequence, the
    ring's positions come first. The aligned sequence begins with the first block that the chunk
    sees.

    Args:
        position: int scalar or `[batch]`, the chunk's first position.
        count: int scalar or `[batch]`, number of the chunk's positions that are not padding, the
            first ones; None for no padding.
        length: int, length of the chunk.
        ring: int, length of the ring.
        block_size, look_back: ints; see `local_attention`.

    Attributes:
        real: bool `[batch or 1, aligned]`, False for padding in the aligned sequence.
    """

    def __init__(self, position, count, length, ring, block_size, look_back):
        self.length, self.block_size = length, block_size
        self.before = (look_back + 1) * block_size
        self.missing = self.before - ring
        # Index in the joined sequence at which the first block in view begins.
        self.start = block_size - position % block_size
        self.total = self.before + length
        count = length if count is None else count
        self._order = places_of_rows(position, tf.range(ring)) % ring
        places = places_of_rows(position - self.before + self.start, tf.range(self.total))
        self.real = (places >= 0) & (places < places_of_rows(position + count, 0))
        # The last position in each slot of the ring; steps mask those before the first.
        age = places_of_rows(position + count - 1, -tf.range(ring)) % ring
        self._held = tf.maximum(places_of_rows(self.before + count - 1, -age), 0)

    def join(self, kept, new):
        """Joins the ring's content, in the order of positions, with the chunk."""
        kept = pad_axis(take_places(kept, self._order), 2, self.missing, 0)
        return tf.concat([kept, tf.cast(new, kept.dtype)], axis=2)

    def align(self, joined):
        """Aligns a joined sequence, which then begins with the first block in view."""
        joined = pad_axis(joined, 2, 0, self.block_size)
        return take_places(joined, places_of_rows(self.start, tf.range(self.total)))

    def align_queries(self, query, first=0):
        """Aligns the chunk's queries, from index `first`; cached positions have none."""
        padded = pad_axis(query, 2, self.before - first, self.block_size)
        return take_places(padded, places_of_rows(self.start, tf.range(self.total - first)))

    def of_chunk(self, aligned, first=0):
        """Returns the positions of the chunk in an aligned sequence that begins at `first`."""
        places = places_of_rows(self.before - self.start - first, tf.range(self.length))
        return take_places(aligned, places)

    def ring_of(self, joined):
        """Returns the ring's content after the chunk, from a joined sequence."""
        return take_places(joined, self._held)
