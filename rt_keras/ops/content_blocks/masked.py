"""Attention to selected blocks as products with all keys within reach, by TensorFlow's kernels.

These kernels are fast at large products and slow at gathering: without a compiler, a CPU multiplies
a query by thousands of keys in less time than it gathers 128 of them.
"""

from typing import NamedTuple

import tensorflow as tf

from rt_keras.ops.attend import MASKED, accumulation_dtype
from rt_keras.ops.blocks import ceil_div, flatten_blocks, pad_axis, size, sizes
from rt_keras.ops.content_blocks.select import NODE_SIZE, log_weight, products_with, with_deviation
from rt_keras.ops.cpu_kernels import attend_in_tiles, positions_per_tile, split_tiles


def attend_to_masked(query, blocks, reach, options, dropout, seed):
    """Computes what `attend_to_best` does, for the queries of a tile at a time.

    Blocks that no query of a tile may select are left out.
    """
    query *= query.shape[-1] ** -0.5
    tile_size = positions_per_tile(query, size(blocks.key, 2))
    units = _lay_out(blocks, options.num_nodes is not None)
    tiles = _BlockTiles(query, units, reach, options, tile_size, blocks.number is not None)
    # The product with the last column is the bias of keys.
    no_key = tf.broadcast_to(units.no_key, [*sizes(units.key)[:4], 1])
    key = tf.concat([units.key, no_key], axis=4)
    query = tf.concat([query, tf.ones_like(query[..., :1])], axis=3)
    return attend_in_tiles(query, key, units.value, tile_size, tiles, dropout, seed)


class _Level(NamedTuple):
    """The summaries of blocks or nodes. `missing` is `MASKED` for those without keys, else 0."""

    mean: tf.Tensor
    variance: tf.Tensor
    missing: tf.Tensor


class _Units(NamedTuple):
    """Blocks such that products broadcast along rows, `[batch or 1, key_heads or 1, parts, units]`.

    A unit is a node, or a block if there are no nodes. Parts of "key" and "value" are keys, first
    the first key of each block of a unit; parts of `blocks` are blocks, those of `nodes` nodes.
    `no_key` is `MASKED` in places without a key, else 0. All have a further axis, the last.
    """

    key: tf.Tensor
    value: tf.Tensor
    no_key: tf.Tensor
    number: tf.Tensor
    blocks: _Level
    nodes: _Level | None


class _BlockTiles:
    """The blocks that the queries of a tile select; see `attend_in_tiles`."""

    def __init__(self, query, units, reach, options, tile_size, is_ring):
        heads, length, key_heads = query.shape[1], size(query, 2), units.key.shape[1]
        self.query = split_tiles(tf.stop_gradient(query), key_heads, tile_size)
        self.units, self.options, self.is_ring = units, options, is_ring
        groups, tiles = heads // key_heads, size(self.query, 0)

        def in_tiles(bound, padding):
            bound = pad_axis(bound, 1, 0, tiles * tile_size - length, padding)
            bound = tf.reshape(bound, [size(bound, 0), tiles, tile_size])
            bound = tf.transpose(bound, [1, 0, 2])[:, :, None, :, None]
            return tf.tile(bound, [1, 1, 1, groups, 1])  # [tiles, batch or 1, 1, rows, 1]

        # Padding selects nothing.
        self.before, self.after = in_tiles(reach.before, 0), in_tiles(reach.after, tf.int32.max)
        self.first = None if reach.first is None else in_tiles(reach.first, tf.int32.max)

    def span(self, index):
        """Leaves out units that no query of a tile may select, but one."""
        units = size(self.units.key, 3)
        if self.is_ring:
            return 0, units
        per_unit = size(self.units.number, 2)
        first, end = 0, ceil_div(tf.reduce_max(self.before[index]), per_unit)
        if self.first is not None:
            first = tf.reduce_min(self.first[index]) // per_unit
        has_later = tf.reduce_min(self.after[index]) < per_unit * units
        first, end = tf.where(has_later, 0, first), tf.where(has_later, units, tf.maximum(end, 1))
        return tf.minimum(first, end - 1), end

    def selection(self, index, first, end, saved):
        """Returns the logs of the weights of blocks, and the largest scores without a weight.

        They are `[batch, key_heads, rows, parts * (end - first)]`, and `[..., rows, 1 or 2]`.
        """
        numbers = self.units.number[:, :, :, first:end]
        score = self._scores(index, self.units.blocks, numbers, first, end)
        node_weights, least = 0.0, []
        if self.units.nodes is not None:
            # Windows begin where nodes begin.
            nodes = self._scores(index, self.units.nodes, numbers[:, :, :1], first, end)
            least.append(_least(nodes, self.options.num_nodes, saved, 0))
            node_weights = tf.where(nodes > MASKED / 2, log_weight(nodes, least[0]), MASKED)
            # Each part has a block of every node.
            node_weights = tf.tile(node_weights, [1, 1, 1, size(numbers, 2)])
            score += node_weights
        least.append(_least(score, self.options.num_blocks, saved, -1))
        weights = node_weights + log_weight(score, least[-1])
        saved = tf.cast(tf.concat(least, axis=-1), accumulation_dtype(score.dtype))
        return tf.where(score > MASKED / 2, weights, MASKED), saved

    def logits(self, products, selection):
        block_size = size(self.units.key, 2) // size(self.units.number, 2)
        shape = sizes(products)
        # The blocks of keys in each part: [batch, key_heads, rows, block_size, blocks]
        products = tf.reshape(products, [*shape[:3], block_size, size(selection, 3)])
        products += tf.cast(selection, products.dtype)[:, :, :, None]
        return tf.reshape(products, shape)

    def _scores(self, index, level, numbers, first, end):
        """Returns the scores of blocks or nodes, `[batch, key_heads, rows, count]`."""
        *summaries, missing = (flatten_blocks(x[:, :, :, first:end]) for x in level)
        query = self.query[index]
        score = with_deviation(products_with, summaries, query, self.options.deviation_weight)
        score += tf.linalg.matrix_transpose(missing)
        numbers = tf.linalg.matrix_transpose(flatten_blocks(numbers))  # [batch or 1, 1, 1, count]
        usable = numbers < self.before[index]
        if self.first is not None:
            usable &= numbers >= self.first[index]
        return tf.where(usable | (numbers >= self.after[index]), score, MASKED)


def _lay_out(blocks, has_nodes):
    """Lays out `Blocks` as `_Units`."""
    batch, key_heads, total, _ = sizes(blocks.mean)
    per_unit = NODE_SIZE if has_nodes else 1
    block_size, units = size(blocks.key, 2) // total, total // per_unit

    def by_keys(x):
        x = tf.reshape(x, [*sizes(x)[:2], units, per_unit, block_size, size(x, 3)])
        x = tf.transpose(x, [0, 1, 4, 3, 2, 5])
        return tf.reshape(x, [*sizes(x)[:2], block_size * per_unit, units, size(x, 5)])

    def by_blocks(x):
        x = tf.reshape(x, [*sizes(x)[:2], units, size(x, 2) // units, size(x, 3)])
        return tf.transpose(x, [0, 1, 3, 2, 4])

    def missing(real, lay_out):
        bias = tf.where(real, 0.0, tf.constant(MASKED))  # [batch or 1, count]
        return lay_out(tf.cast(bias, blocks.key.dtype)[:, None, ..., None])

    def level(mean, variance, real):
        mean, variance = (by_blocks(tf.stop_gradient(x)) for x in (mean, variance))
        return _Level(mean, variance, missing(real, by_blocks))

    counts, nodes = blocks.counts, None
    if has_nodes:
        real = tf.reduce_any(tf.reshape(counts, [size(counts, 0), units, per_unit]) > 0, axis=2)
        nodes = level(blocks.node_mean, blocks.node_variance, real)
    real = tf.range(block_size) < counts[..., None]  # [batch or 1, blocks, block_size]
    real = tf.reshape(real, [size(counts, 0), total * block_size])
    return _Units(
        by_keys(blocks.key),
        by_keys(blocks.value),
        missing(real, by_keys),
        by_blocks(blocks.numbers()[:, None, :, None]),
        level(blocks.mean, blocks.variance, counts > 0),
        nodes,
    )


def _least(score, count, saved, place):
    """Returns what was saved of it, or the largest score without a weight, if there is one."""
    if saved is not None:
        return tf.cast(saved[..., place, None], score.dtype)
    width = size(score, -1)

    def next_largest():
        return tf.raw_ops.NthElement(input=score, n=count, reverse=True)[..., None]

    def none():
        return tf.fill([*sizes(score)[:-1], 1], score.dtype.min)

    if isinstance(width, int):
        return next_largest() if width > count else none()
    return tf.cond(width > count, next_largest, none)
