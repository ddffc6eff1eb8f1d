"""Attention of positions to a span of keys around them, by TensorFlow's kernels."""

import functools
from typing import NamedTuple

import tensorflow as tf

from rt_keras.ops.attend import MASKED, accumulation_dtype, where_all, without_padding
from rt_keras.ops.blocks import size
from rt_keras.ops.key_slices import attend_to_slices, tile_size


class Spans(NamedTuple):
    """The keys that a query sees.

    Attributes:
        block_size: int, number of positions of a block. None for one block of all positions.
        before, after: int, number of blocks before and after its own whose keys a query sees.
        causal: bool, whether it sees none of the later keys.
        sliding_window: int, maximum distance of the keys, plus one; or None.
        offset: int, position of the first query among the keys.
        numbers: int `[batch, length]`, numbers of the blocks of queries and keys, instead of
            those by position; or None.
    """

    block_size: int | None = None
    before: int = 0
    after: int = 0
    causal: bool = False
    sliding_window: int | None = None
    offset: int = 0
    numbers: tf.Tensor | None = None

    def width(self, keys):
        """Returns the number of keys in the blocks that a query sees, of `keys` in all."""
        width = (self.before + 1 + self.after) * (self.block_size or 0)
        return min(width, keys) if width and isinstance(keys, int) else width or keys

    def ends(self, first, last, keys):
        """Returns the first key that queries from `first` to `last` see, and the end of theirs."""
        start, end = 0, keys
        if self.block_size is not None:
            start = (first // self.block_size - self.before) * self.block_size
            end = (last // self.block_size + self.after + 1) * self.block_size
            if self.numbers is not None:
                # Blocks may begin anywhere.
                start, end = start - self.block_size, end + self.block_size
        if self.causal:
            end = tf.minimum(end, last + 1)
        return tf.maximum(start, 0), tf.minimum(end, keys)

    def allowed(self, query, key, is_one_block):
        """Returns which keys queries see, bool `[queries, keys]`, in a list of masks."""
        query, masks = query[:, None], []
        if self.causal:
            masks.append(key <= query)
        if self.sliding_window is not None:
            masks.append(tf.abs(query - key) < self.sliding_window)
        if not (self.block_size is None or is_one_block or self.numbers is not None):
            distance = key // self.block_size - query // self.block_size
            masks += self._are_near(distance)
        return masks

    def allowed_by_number(self, queries, first, end):
        """Returns which keys from `first` to `end` queries see, `[batch, queries, keys]` masks."""
        if self.numbers is None:
            return []
        # There may be padding after the last query.
        numbers = tf.pad(self.numbers, [[0, 0], [0, size(queries, 0)]])
        of_queries = tf.gather(numbers, queries, axis=1)
        return self._are_near(self.numbers[:, None, first:end] - of_queries[:, :, None])

    def _are_near(self, distance):
        return [distance >= -self.before, distance <= self.after]


def attend_to_spans(query, key, value, spans, query_mask, key_mask, dropout=0.0, seed=None):
    """Computes what `attend` does, for the positions of a tile at a time.

    Args:
        query: `[batch, heads, length, depth]`, already scaled.
        key, value: `[batch, key_heads, keys, depth]`.
        spans: `Spans`.
        query_mask, key_mask: bool `[batch, length]` and `[batch, keys]`, False for padding; or
            None.
        dropout, seed: see `attend`.

    Returns:
        Tuple of `[batch, heads, length, value_depth]` and the logsumexp of the logits
        `[batch, heads, length]`.
    """
    tile = tile_size(query, spans.width(size(key, 2)))
    tiles = _Tiles(spans, tile, query, key, key_mask)
    key, value = key[:, :, None], value[:, :, None]
    found = attend_to_slices(query, key, value, tile, tiles, dropout, seed)
    return found if query_mask is None else without_padding(*found, query_mask)


class _Tiles:
    """See `attend_to_slices`."""

    def __init__(self, spans, tile, query, key, key_mask):
        self.spans, self.tile, self.keys = spans, tile, size(key, 2)
        self.groups = query.shape[1] // key.shape[1]
        self.dtype = accumulation_dtype(query.dtype)
        self.key_mask = None if key_mask is None else tf.cast(key_mask, tf.bool)

    def span(self, index):
        first = self.spans.offset + index * self.tile
        return self.spans.ends(first, first + self.tile - 1, self.keys)

    def selection(self, index, first, end, kept):
        queries = self.spans.offset + index * self.tile + tf.range(self.tile)
        block_size = self.spans.block_size
        is_one_block = block_size is None or block_size % self.tile == 0
        masks = self.spans.allowed(queries, tf.range(first, end), is_one_block)
        masks = [tf.tile(mask, [self.groups, 1]) for mask in masks]
        for mask in self.spans.allowed_by_number(queries, first, end):
            masks.append(tf.tile(mask, [1, self.groups, 1])[:, None])
        if self.key_mask is not None:
            masks.append(self.key_mask[:, None, None, first:end])
        # One mask costs less than several selections among logits.
        masks = [functools.reduce(tf.logical_and, masks)] if masks else []
        return masks, tf.zeros([0], self.dtype)

    def logits(self, products, selection):
        return where_all(selection, products, tf.constant(MASKED, products.dtype))
