"""Local attention of several positions at a time, given the cache of those before them."""

import tensorflow as tf

from rt_keras.ops.blocks import pad_axis, places_of_rows, size, take_places
from rt_keras.ops.local import local_attention, per_dimension


def local_chunk(
    query, key, value, cache, position, *, block_size, look_back=1, grid=None, count=None, **options
):
    """Causal `local_attention` of the positions of a chunk, given those before it.

    What the cache keeps is put before the chunk, so that blocks begin where they do in the whole
    sequence, and attention runs once over both.

    Args:
        query: `[batch, heads, length, depth]`.
        key: `[batch, key_heads, length, depth]`.
        value: `[batch, key_heads, length, value_depth]`.
        cache: the cache of `local_cache`, `local_step` or of the last chunk.
        position: int scalar, the chunk's first position; any, not only that of a block. Or int
            `[batch]`, if rows are at different positions.
        block_size: int, positions in a block.
        look_back: int, blocks before its own that a query sees. Defaults to 1.
        grid: must be None, as `local_step` has a grid.
        count: int scalar or `[batch]`, how many of the chunk's positions count, the first ones;
            others are padding, whose outputs mean nothing. None, the default, for all.
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
    >>> output, cache = local_chunk(rest, rest, rest, cache, 30, block_size=8)
    >>> output.shape
    TensorShape([1, 2, 20, 4])
    """
    if grid is not None:
        raise ValueError(f"Blocks on a grid are not attended to in chunks. Received: grid={grid}")
    length, ring = size(query, 2), size(cache["key"], 2)
    look_back = per_dimension(look_back, (1,))[0]
    joined = JoinedChunk(position, count, length, ring, block_size, look_back)
    keys = joined.join(cache["key"], key)
    values = joined.join(cache["value"], value)
    # The first blocks in view have no queries. With dropout they are there all the same: what a
    # seed drops depends on how many there are.
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
    """A chunk behind what its ring keeps, as blocks that begin where they do in the whole sequence.

    Position p of the sequence is at place p modulo the ring's length. In the joined sequence the
    ring's positions come first; aligned, it begins with the first block in view of the chunk.

    Args:
        position: int scalar or `[batch]`, that of the chunk's first.
        count: int scalar or `[batch]`, how many positions of the chunk count; None for all.
        length: int, that of the chunk.
        ring: int, places of the ring.
        block_size, look_back: ints; see `local_attention`.

    Attributes:
        real: bool `[batch or 1, aligned]`, which positions there are.
    """

    def __init__(self, position, count, length, ring, block_size, look_back):
        self.length, self.block_size = length, block_size
        self.before = (look_back + 1) * block_size
        self.missing = self.before - ring
        # Where the first block in view begins.
        self.start = block_size - position % block_size
        self.total = self.before + length
        count = length if count is None else count
        self._order = places_of_rows(position, tf.range(ring)) % ring
        places = places_of_rows(position - self.before + self.start, tf.range(self.total))
        self.real = (places >= 0) & (places < places_of_rows(position + count, 0))
        # The last position at each place of the ring; steps mask those before the first.
        age = places_of_rows(position + count - 1, -tf.range(ring)) % ring
        self._held = tf.maximum(places_of_rows(self.before + count - 1, -age), 0)

    def join(self, kept, new):
        """What a ring keeps, in the order of positions, and the chunk."""
        kept = pad_axis(take_places(kept, self._order), 2, self.missing, 0)
        return tf.concat([kept, tf.cast(new, kept.dtype)], axis=2)

    def align(self, joined):
        """A joined sequence from the first block in view on."""
        joined = pad_axis(joined, 2, 0, self.block_size)
        return take_places(joined, places_of_rows(self.start, tf.range(self.total)))

    def align_queries(self, query, first=0):
        """The chunk's queries from an aligned place on; what is kept has none."""
        padded = pad_axis(query, 2, self.before - first, self.block_size)
        return take_places(padded, places_of_rows(self.start, tf.range(self.total - first)))

    def of_chunk(self, aligned, first=0):
        """The positions of the chunk in an aligned sequence, given from a place on."""
        places = places_of_rows(self.before - self.start - first, tf.range(self.length))
        return take_places(aligned, places)

    def ring_of(self, joined):
        """What the ring holds after the chunk, of a joined sequence."""
        return take_places(joined, self._held)

    def ring_of_aligned(self, aligned):
        """The same of an aligned sequence; what came before the first block in view is lost."""
        places = tf.clip_by_value(self._held - tf.reshape(self.start, [-1, 1]), 0, self.total - 1)
        return take_places(aligned, places)
