"""Attention to selected blocks as products with all keys within reach, by TensorFlow's kernels.

These kernels are fast at large products and slow at gathering: without a compiler, a CPU multiplies
a query by thousands of keys in less time than it gathers 128 of them.
"""

import tensorflow as tf

from rt_keras.ops.attend import MASKED, accumulation_dtype
from rt_keras.ops.blocks import ceil_div, pad_axis, size, sizes
from rt_keras.ops.content_blocks.select import NODE_SIZE, log_weight, products_with, with_deviation
from rt_keras.ops.cpu_kernels import attend_in_tiles, positions_per_tile, split_tiles


def attend_to_masked(
    query, blocks, reach, counts, num_blocks, num_nodes, deviation_weight, dropout, seed
):
    """Computes what `attend_to_best` does, for the queries of a tile at a time.

    Blocks that no query of a tile may select are left out.

    Args:
        query: `[batch, heads, length, depth]`.
        blocks, reach, counts, num_blocks, num_nodes, deviation_weight: see `attend_to_best`.
        dropout, seed: see `attend_to_best`.

    Returns:
        Tuple of `[batch, heads, length, value_depth]` and the logsumexp of the logits,
        `[batch, heads, length]`.
    """
    query *= query.shape[-1] ** -0.5
    tile = positions_per_tile(query, size(blocks["key"], 2))
    parts = _parts_of_units(blocks, counts, num_nodes is not None)
    key = parts["key"]
    no_key = tf.broadcast_to(parts["no_key"], [*sizes(key)[:4], 1])
    is_ring, numbers = "number" in blocks, (num_blocks, num_nodes)
    tiles = _Tiles(query, parts, reach, numbers, deviation_weight, tile, is_ring)
    # The product with the last column is the bias of keys.
    key = tf.concat([key, no_key], axis=4)
    query = tf.concat([query, tf.ones_like(query[..., :1])], axis=3)
    return attend_in_tiles(query, key, parts["value"], tile, tiles, dropout, seed)


class _Tiles:
    """The blocks that the queries of a tile select; see `attend_in_tiles`.

    Args:
        query: `[batch, heads, length, depth]`, already scaled.
        parts: see `_parts_of_units`.
        reach: `Reach` of the queries.
        numbers: tuple of the numbers of blocks and of nodes, or None, that a query selects.
        deviation_weight: see `attend_to_best`.
        tile: int, number of positions of a tile.
        is_ring: bool, whether blocks have no order.
    """

    def __init__(self, query, parts, reach, numbers, deviation_weight, tile, is_ring):
        heads, length, key_heads = query.shape[1], size(query, 2), parts["key"].shape[1]
        self.query = split_tiles(tf.stop_gradient(query), key_heads, tile)
        self.parts, self.is_ring = parts, is_ring
        (self.num_blocks, self.num_nodes), self.deviation_weight = numbers, deviation_weight
        groups, tiles = heads // key_heads, size(self.query, 0)

        def in_tiles(bound, of_padding):
            # [tiles, batch or 1, 1, rows, 1]
            bound = pad_axis(bound, 1, 0, tiles * tile - length, of_padding)
            bound = tf.reshape(bound, [size(bound, 0), tiles, tile])
            bound = tf.transpose(bound, [1, 0, 2])[:, :, None, :, None]
            return tf.tile(bound, [1, 1, 1, groups, 1])

        # Padding selects nothing.
        self.before, self.after = in_tiles(reach.before, 0), in_tiles(reach.after, tf.int32.max)
        self.first = None if reach.first is None else in_tiles(reach.first, tf.int32.max)

    def span(self, index):
        """Leaves out units that no query of a tile may select, but one."""
        units = size(self.parts["key"], 3)
        if self.is_ring:
            return 0, units
        per_unit = size(self.parts["number"], 2)
        first, end = 0, ceil_div(tf.reduce_max(self.before[index]), per_unit)
        if self.first is not None:
            first = tf.reduce_min(self.first[index]) // per_unit
        has_later = tf.reduce_min(self.after[index]) < per_unit * units
        first, end = tf.where(has_later, 0, first), tf.where(has_later, units, tf.maximum(end, 1))
        return tf.minimum(first, end - 1), end

    def selection(self, index, first, end, kept):
        """Returns the logs of the weights of blocks, and the largest scores without a weight.

        They are `[batch, key_heads, rows, parts * (end - first)]`, and `[..., rows, 1 or 2]`.
        """
        seen = {name: x[:, :, :, first:end] for name, x in self.parts.items()}
        score, of_nodes, least = self._scores(index, seen, "", "no_block", seen["number"]), 0.0, []
        if self.num_nodes is not None:
            # Windows begin where nodes begin.
            number = seen["number"][:, :, :1]
            nodes = self._scores(index, seen, "node_", "no_node", number)
            least.append(_least(nodes, self.num_nodes, kept, 0))
            of_nodes = tf.where(nodes > MASKED / 2, log_weight(nodes, least[0]), MASKED)
            # Each part has a block of every node.
            of_nodes = tf.tile(of_nodes, [1, 1, 1, size(seen["number"], 2)])
            score += of_nodes
        least.append(_least(score, self.num_blocks, kept, -1))
        found = of_nodes + log_weight(score, least[-1])
        kept = tf.cast(tf.concat(least, axis=-1), accumulation_dtype(score.dtype))
        return tf.where(score > MASKED / 2, found, MASKED), kept

    def logits(self, products, selection):
        block_size = size(self.parts["key"], 2) // size(self.parts["number"], 2)
        # The blocks of keys in each part. [batch, key_heads, rows, block_size, blocks]
        shape = sizes(products)
        products = tf.reshape(products, [*shape[:3], block_size, size(selection, 3)])
        products += tf.cast(selection, products.dtype)[:, :, :, None]
        return tf.reshape(products, shape)

    def _scores(self, index, seen, prefix, missing, number):
        summaries = (_flat(seen[f"{prefix}{x}"]) for x in ("mean", "variance"))
        query = self.query[index]
        found = with_deviation(products_with, summaries, query, self.deviation_weight)
        found += tf.linalg.matrix_transpose(_flat(seen[missing]))
        # [batch or 1, 1, 1, blocks]
        number = tf.linalg.matrix_transpose(_flat(number))
        usable = number < self.before[index]
        if self.first is not None:
            usable &= number >= self.first[index]
        return tf.where(usable | (number >= self.after[index]), found, MASKED)


def _parts_of_units(blocks, counts, has_nodes):
    """Lays out blocks such that products broadcast along rows: one unit after the other.

    Args:
        blocks, counts: see `attend_to_best`.
        has_nodes: bool, whether a unit is a node instead of a block.

    Returns:
        Dictionary of tensors `[batch or 1, key_heads or 1, parts, units, depth]`. Parts of "key"
        and "value" are keys, first the first key of each block of a unit; parts of "mean" and
        "variance" are blocks, and those of "node_mean" and "node_variance" are nodes. "no_key",
        "no_block" and "no_node" are `MASKED` in places without one, else 0. "number" is the number
        of each block in the sequence.
    """
    batch, key_heads, total, _ = sizes(blocks["mean"])
    per_unit = NODE_SIZE if has_nodes else 1
    block_size, units = size(blocks["key"], 2) // total, total // per_unit

    def of_keys(x):
        x = tf.reshape(x, [*sizes(x)[:2], units, per_unit, block_size, size(x, 3)])
        x = tf.transpose(x, [0, 1, 4, 3, 2, 5])
        return tf.reshape(x, [*sizes(x)[:2], block_size * per_unit, units, size(x, 5)])

    def of_blocks(x):
        x = tf.reshape(x, [*sizes(x)[:2], units, size(x, 2) // units, size(x, 3)])
        return tf.transpose(x, [0, 1, 3, 2, 4])

    def missing(real, lay_out):
        # [batch or 1, ...] to [batch or 1, 1, ..., 1]
        found = tf.where(real, 0.0, tf.constant(MASKED))
        return lay_out(tf.cast(found, blocks["key"].dtype)[:, None, ..., None])

    summaries = {x: of_blocks(tf.stop_gradient(blocks[x])) for x in ("mean", "variance")}
    if has_nodes:
        nodes = "node_mean", "node_variance"
        summaries |= {x: of_blocks(tf.stop_gradient(blocks[x])) for x in nodes}
        real = tf.reduce_any(tf.reshape(counts, [size(counts, 0), units, per_unit]) > 0, axis=2)
        summaries["no_node"] = missing(real, of_blocks)
    real = tf.range(block_size) < counts[..., None]
    real = tf.reshape(real, [size(counts, 0), total * block_size])
    number = blocks["number"] if "number" in blocks else tf.range(total)[None]
    return {
        "number": of_blocks(number[:, None, :, None]),
        "key": of_keys(blocks["key"]),
        "value": of_keys(blocks["value"]),
        "no_key": missing(real, of_keys),
        "no_block": missing(counts > 0, of_blocks),
        **summaries,
    }


def _least(score, count, kept, place):
    """Returns what was kept of it, or the largest score without a weight, if there is one."""
    if kept is not None:
        return tf.cast(kept[..., place, None], score.dtype)
    width = size(score, -1)

    def next_largest():
        return tf.raw_ops.NthElement(input=score, n=count, reverse=True)[..., None]

    def none():
        return tf.fill([*sizes(score)[:-1], 1], score.dtype.min)

    if isinstance(width, int):
        return next_largest() if width > count else none()
    return tf.cond(width > count, next_largest, none)


def no_attention(query, value):
    """Returns the output and the logsumexp of queries `[batch, heads, length, depth]` without keys.

    Args:
        query: `[batch, heads, length, depth]`.
        value: `[batch, key_heads, keys, value_depth]`.
    """
    shape, dtype = sizes(query)[:3], accumulation_dtype(query.dtype)
    output = tf.zeros([*shape, size(value, 3)], value.dtype)
    return output, tf.fill(shape, tf.constant(MASKED, dtype))


def _flat(x):
    """Joins parts and units. `[batch, key_heads, parts * units, depth]`."""
    return tf.reshape(x, [*sizes(x)[:2], size(x, 2) * size(x, 3), size(x, 4)])
