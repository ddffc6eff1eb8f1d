"""Local attention of a chunk or of one position, given the cache of earlier ones."""

import functools
import math

import tensorflow as tf

from rt_keras.ops.attend import StepKeys, attend_step
from rt_keras.ops.blocks import (
    flatten_blocks,
    pad_axis,
    places_of_rows,
    size,
    smaller,
    split_blocks,
    take_places,
)
from rt_keras.ops.caches import check_position, from_rows, numbers_of_slots, pad_to, write
from rt_keras.ops.local.neighborhood import place_of_own_block, steps_of_window
from rt_keras.ops.local.windows import local_attention


def local_cache(key, value, count, neighborhood, *, max_length=None):
    """Builds the cache of `local_step`: a ring buffer of the blocks that a query can see.

    Position p is in slot p modulo the ring's length, (look_back + 1) · block_size. On a grid,
    where blocks in view are far apart, the cache has all positions.

    Args:
        key: `[batch, heads, length, depth]`, from the first position.
        value: `[batch, heads, length, value_depth]`.
        count: int scalar, number of positions in the cache, the first ones; others are padding.
        neighborhood: the `Neighborhood` of queries.
        max_length: int, maximum length of the sequence, which also bounds the ring. Defaults to
            None, for no maximum.

    Returns:
        A dictionary of "key" and "value", `[batch, heads, places, ...]`.

    >>> from rt_keras.ops.local.neighborhood import Neighborhood
    >>> x = tf.random.normal([1, 2, 50, 4])
    >>> local_cache(x, x, 50, Neighborhood(block_size=8))["key"].shape
    TensorShape([1, 2, 16, 4])
    """
    grid, block_size = neighborhood.grid, neighborhood.block_size
    if grid is not None:
        length = math.prod(grid) * block_size
        return {"key": pad_to(key, length), "value": pad_to(value, length)}
    ring = (neighborhood.reach[0] + 1) * block_size
    if max_length is not None:
        ring = smaller(ring, max_length)
    # The last position in each slot; the step masks those before the first.
    held = tf.maximum(numbers_of_slots(count, ring), 0)
    return {"key": tf.gather(key, held, axis=2), "value": tf.gather(value, held, axis=2)}


def local_step(
    query,
    key,
    value,
    cache,
    position,
    neighborhood,
    *,
    count=None,
    relative_embeddings=None,
    return_logsumexp=False,
):
    """Computes causal `local_attention` of one position, given the cache of earlier ones.

    Args:
        query: `[batch, heads, 1, depth]`.
        key: `[batch, heads, 1, depth]`.
        value: `[batch, heads, 1, value_depth]`.
        cache: the cache of `local_cache` or of the last step.
        position: int scalar, the query's position; or int `[batch]`, one for each row.
        neighborhood: the `Neighborhood` of the query, which is taken to be causal.
        count: int `[batch]`, 0 for rows whose position is padding: their cache is unchanged, and
            their outputs are undefined. Defaults to None, for no padding.
        relative_embeddings, return_logsumexp: see `local_attention`.

    Returns:
        `[batch, heads, 1, value_depth]`, or a pair of it and the logsumexp `[batch, heads, 1]`; and
        the cache with this position added.

    Raises:
        ValueError: if the position is known to be outside of a grid.

    >>> from rt_keras.ops.local.neighborhood import Neighborhood
    >>> x = tf.random.normal([1, 2, 50, 4])
    >>> neighborhood = Neighborhood(block_size=8)
    >>> cache = local_cache(x, x, 49, neighborhood)
    >>> last = x[:, :, 49:]
    >>> output, cache = local_step(last, last, last, cache, 49, neighborhood)
    >>> output.shape
    TensorShape([1, 2, 1, 4])
    """
    cache = add_position(cache, position, key, value, neighborhood, count)
    keys = keys_in_view(cache, position, neighborhood)
    options = {"relative_embeddings": relative_embeddings, "return_logsumexp": return_logsumexp}
    return attend_step(query, *keys, **options), cache


def local_cross_step(
    query, key, value, position, neighborhood, *, key_mask=None, relative_embeddings=None
):
    """Computes `local_attention` of one position to the blocks of another sequence.

    Args:
        query: `[batch, heads, queries, depth]`, any number of queries at the same position.
        key: `[batch, heads, keys, depth]`.
        value: `[batch, heads, keys, value_depth]`.
        position: int scalar, the queries' position.
        neighborhood: the `Neighborhood` of the queries, which is not causal.
        key_mask: bool `[batch, keys]`, False for padding; or None.
        relative_embeddings: see `local_attention`.

    Returns:
        `[batch, heads, queries, value_depth]`.

    >>> from rt_keras.ops.local.neighborhood import Neighborhood
    >>> x = tf.random.normal([1, 2, 6, 4])
    >>> neighborhood = Neighborhood(block_size=4, key_block_size=2)
    >>> local_cross_step(x[:, :, :1], x, x, 7, neighborhood).shape
    TensorShape([1, 2, 1, 4])
    """
    keys = keys_in_window({"key": key, "value": value}, position, neighborhood, key_mask)
    return attend_step(query, *keys, causal=False, relative_embeddings=relative_embeddings)


def add_position(cache, position, key, value, neighborhood, count):
    """Adds a position to the cache, in rows where it is not padding."""
    length = size(cache["key"], 2)
    if neighborhood.grid is not None:
        check_position(position, length, count)
    return write(cache, places_of_rows(position % length, 0), count, key=key, value=value)


def keys_in_view(cache, position, neighborhood):
    """Returns the `StepKeys` of a causal query at `position`."""
    if neighborhood.grid is not None:
        return keys_in_window(cache, position, neighborhood._replace(causal=True))
    length = size(cache["key"], 2)
    distance = from_rows(position, -tf.range(length)) % length  # [places] or [batch, 1, places]
    position = from_rows(position, 0)
    places = position, position - distance
    masks = neighborhood.masks(*places, neighborhood.blocks_apart(*places))
    # There are no keys before the first position.
    allowed = functools.reduce(tf.logical_and, masks, distance <= position)
    return StepKeys(cache["key"], cache["value"], allowed[..., None, :], distance)


def keys_in_window(cache, position, neighborhood, key_mask=None):
    """Returns the `StepKeys` in the window of a query at `position`; see `local_attention`."""
    block_size, key_block_size = neighborhood.block_size, neighborhood.size_of_key_blocks
    grid, sides = neighborhood.grid_of(size(cache["key"], 2)), neighborhood.sides
    own_block = places_of_rows(position // block_size, 0)
    blocks, inside = _neighbours(own_block, grid, *sides)
    inside = tf.repeat(inside, key_block_size, axis=1)[:, None, :, None]

    def window(x):
        # [batch, heads, blocks of the window, key_block_size, ...]
        x = take_places(split_blocks(x, math.prod(grid), key_block_size), blocks)
        x = flatten_blocks(x)
        return tf.where(inside, x, tf.zeros_like(x))

    key, value = window(cache["key"]), window(cache["value"])
    if key_mask is None:
        key_mask = tf.ones([size(key, 0), size(cache["key"], 2)], tf.bool)
    allowed = tf.linalg.matrix_transpose(window(tf.cast(key_mask, tf.bool)[:, None, :, None]))
    start = place_of_own_block(*sides) * key_block_size
    place, places = from_rows(position % block_size, start), tf.range(size(key, 2))
    for mask in neighborhood.masks(place, places):
        allowed &= mask[..., None, :]
    return StepKeys(key, value, allowed, place - places)


def _neighbours(block, grid, before, after):
    """Returns the blocks in the windows of blocks `[rows, 1]`, and a mask of those on the grid.

    Both are `[rows, n]`, in the order of `neighbour_blocks`.
    """
    number, inside = 0, True
    steps = tf.constant(steps_of_window(before, after), tf.int32)  # [n, dimensions]
    stride = 1
    for axis in reversed(range(len(grid))):
        along = block % grid[axis] + steps[:, axis]
        block //= grid[axis]
        inside &= (along >= 0) & (along < grid[axis])
        number += along * stride
        stride *= grid[axis]
    return tf.where(inside, number, 0), inside


def local_chunk(
    query,
    key,
    value,
    cache,
    position,
    neighborhood,
    *,
    count=None,
    relative_embeddings=None,
    dropout=0.0,
    seed=None,
    return_logsumexp=False,
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
        neighborhood: the `Neighborhood` of the queries, which is taken to be causal.
        count: int scalar or `[batch]`, number of the chunk's positions that are not padding, the
            first ones. Outputs of padding are undefined. Defaults to None, for no padding.
        relative_embeddings, dropout, seed: see `local_attention`.
        return_logsumexp: see `local_attention`.

    Returns:
        `[batch, heads, length, value_depth]`, or a pair of it and the logsumexp
        `[batch, heads, length]`; and the cache with these positions added.

    Raises:
        ValueError: if there is a grid, since its blocks in view are not consecutive.

    >>> from rt_keras.ops.local.neighborhood import Neighborhood
    >>> x = tf.random.normal([1, 2, 50, 4])
    >>> neighborhood = Neighborhood(block_size=8)
    >>> cache = local_cache(x, x, 30, neighborhood)
    >>> rest = x[:, :, 30:]
    >>> output, cache = local_chunk(rest, rest, rest, cache, 30, neighborhood)
    >>> output.shape
    TensorShape([1, 2, 20, 4])
    """
    if neighborhood.grid is not None:
        raise ValueError(f"local_chunk does not support a grid. Received: grid={neighborhood.grid}")
    length, ring = size(query, 2), size(cache["key"], 2)
    block_size, look_back = neighborhood.block_size, neighborhood.reach[0]
    joined = JoinedChunk(position, count, length, ring, block_size, look_back)
    keys, values = joined.join(cache["key"], key), joined.join(cache["value"], value)
    # The first blocks in view have no queries. With dropout they are computed anyway, because what
    # a seed drops depends on the number of blocks.
    before = 0 if dropout else look_back * block_size
    attended = local_attention(
        joined.align_queries(query, before),
        joined.align(keys),
        joined.align(values),
        **neighborhood._replace(key_block_size=None, causal=True)._asdict(),
        keys_before=before,
        key_mask=joined.real,
        relative_embeddings=relative_embeddings,
        dropout=dropout,
        seed=seed,
        return_logsumexp=return_logsumexp,
    )
    output = tf.nest.map_structure(lambda x: joined.of_chunk(x, before), attended)
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
        positions = numbers_of_slots(tf.reshape(position + count, [-1]), ring)
        self._held = tf.maximum(places_of_rows(self.before - position, positions), 0)

    def join(self, ring, chunk):
        """Joins the ring's content, in the order of positions, with the chunk."""
        ring = pad_axis(take_places(ring, self._order), 2, self.missing, 0)
        return tf.concat([ring, tf.cast(chunk, ring.dtype)], axis=2)

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
