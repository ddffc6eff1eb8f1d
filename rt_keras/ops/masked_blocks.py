"""Attention to selected blocks as products with all keys within reach, by TensorFlow's kernels.

These kernels are fast at large products and slow at gathering: without a compiler, a CPU multiplies
a query by thousands of keys in less time than it gathers 128 of them.
"""

import tensorflow as tf

from rt_keras.ops.attend import MASKED, accumulation_dtype, softmax_sums
from rt_keras.ops.block_selection import NODE_SIZE, log_weight, products_with, with_deviation
from rt_keras.ops.blocks import ceil_div, pad_axis, size, sizes
from rt_keras.ops.chunks import map_chunks

# Number of positions whose queries are multiplied by keys at once.
TILE_SIZE = 256


def attend_to_masked(
    query, blocks, reach, counts, num_blocks, num_nodes, deviation_weight, dropout, seed
):
    """Computes what `attend_to_best` does, for the queries of a tile at a time.

    Blocks that no query of a tile may select are left out. The gradient recomputes the logits.

    Args:
        query: `[batch, heads, length, depth]`.
        blocks, reach, counts, num_blocks, num_nodes, deviation_weight: see `attend_to_best`.
        dropout, seed: see `attend_to_best`.

    Returns:
        Tuple of `[batch, heads, length, value_depth]` and the logsumexp of the logits,
        `[batch, heads, length]`.
    """
    (batch, heads, length, depth), key_heads = sizes(query), blocks["key"].shape[1]
    groups, tiles = heads // key_heads, ceil_div(length, TILE_SIZE)
    missing = tiles * TILE_SIZE - length
    # The heads of a key head are consecutive.
    query = pad_axis(query * depth**-0.5, 2, 0, missing)
    query = tf.reshape(query, [batch, key_heads, groups, tiles, TILE_SIZE, depth])
    # [tiles, batch, key_heads, queries, depth]
    query = tf.reshape(
        tf.transpose(query, [3, 0, 1, 2, 4, 5]),
        [tiles, batch, key_heads, groups * TILE_SIZE, depth],
    )

    def in_tiles(bound):
        # Padding selects what the last query selects. [tiles, batch or 1, 1, queries, 1]
        last = tf.repeat(bound[:, -1:], missing, axis=1)
        bound = tf.reshape(tf.concat([bound, last], axis=1), [size(bound, 0), tiles, TILE_SIZE])
        return tf.tile(tf.transpose(bound, [1, 0, 2])[:, :, None, :, None], [1, 1, 1, groups, 1])

    bounds = {"before": reach.before, "after": reach.after}
    if reach.first is not None:
        bounds["first"] = reach.first
    stacked = {"query": query, **{name: in_tiles(x) for name, x in bounds.items()}}
    if dropout:
        stacked["seed"] = tf.random.split(seed, tiles)
    parts = _parts_of_units(blocks, counts, num_nodes is not None)

    def attend_tile(part, whole):
        whole = _within_reach(whole, part, "number" in blocks)
        bias = _log_weights(part, whole, num_blocks, num_nodes, deviation_weight)
        return _attend(part["query"], whole, bias, dropout, part.get("seed"))

    dtypes = blocks["value"].dtype, accumulation_dtype(query.dtype)
    output, logsumexp = map_chunks(attend_tile, stacked, parts, dtypes)

    def of_positions(x):
        # [tiles, batch, key_heads, queries, ...] to [batch, heads, length, ...]
        x = tf.reshape(x, [tiles, batch, key_heads, groups, TILE_SIZE, size(x, 4)])
        x = tf.reshape(tf.transpose(x, [1, 2, 3, 0, 4, 5]), [batch, heads, -1, size(x, 5)])
        return x[:, :, :length]

    return of_positions(output), of_positions(logsumexp[..., None])[..., 0]


def _within_reach(whole, part, is_ring):
    """Leaves out units that no query of a tile may select, but one. A ring has no order."""
    if is_ring:
        return whole
    units, number = size(whole["key"], 3), whole["number"]
    per_unit = size(number, 2)
    first, end = 0, ceil_div(tf.reduce_max(part["before"]), per_unit)
    if "first" in part:
        first = tf.reduce_min(part["first"]) // per_unit
    has_later = tf.reduce_min(part["after"]) < per_unit * units
    first, end = tf.where(has_later, 0, first), tf.where(has_later, units, tf.maximum(end, 1))
    first = tf.minimum(first, end - 1)
    return {name: x[:, :, :, first:end] for name, x in whole.items()}


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


def _log_weights(part, whole, num_blocks, num_nodes, deviation_weight):
    """Returns the logs of the weights of blocks, `[batch, key_heads, queries, blocks]`."""
    query, of_nodes = tf.stop_gradient(part["query"]), 0.0

    def score(prefix, missing, number):
        summaries = (_flat(whole[f"{prefix}{x}"]) for x in ("mean", "variance"))
        found = with_deviation(products_with, summaries, query, deviation_weight)
        found += tf.linalg.matrix_transpose(_flat(whole[missing]))
        # [batch or 1, 1, 1, blocks]
        number = tf.linalg.matrix_transpose(_flat(number))
        usable = number < part["before"]
        if "first" in part:
            usable &= number >= part["first"]
        return tf.where(usable | (number >= part["after"]), found, MASKED)

    found = score("", "no_block", whole["number"])
    if num_nodes is not None:
        # Windows begin where nodes begin.
        nodes = score("node_", "no_node", whole["number"][:, :, :1])
        of_nodes = tf.where(nodes > MASKED / 2, _fading(nodes, num_nodes), MASKED)
        # Each part has a block of every node. [batch, key_heads, queries, parts, units]
        shape = [*sizes(found)[:3], size(whole["mean"], 2), size(nodes, 3)]
        of_nodes = tf.broadcast_to(of_nodes[:, :, :, None], shape)
        of_nodes = tf.reshape(of_nodes, sizes(found))
        found += of_nodes
    return tf.where(found > MASKED / 2, of_nodes + _fading(found, num_blocks), MASKED)


def _fading(score, count):
    """Returns the logs of the weights of scores; see `selected_blocks_attention`."""
    width = size(score, -1)
    largest = tf.math.top_k(score, tf.minimum(count + 1, width))[0]
    # The largest score without a weight, if there are that many.
    least = tf.where(width > count, largest[..., -1:], score.dtype.min)
    return log_weight(score, least)


def _attend(query, part, bias, dropout, seed):
    """Computes attention to keys with a bias `[batch, key_heads, queries, blocks]`."""
    dtype = accumulation_dtype(query.dtype)
    # The last column of the product is the bias of keys.
    key = tf.concat([part["key"], tf.broadcast_to(part["no_key"], [*sizes(part["key"])[:4], 1])], 4)
    query = tf.concat([query, tf.ones_like(query[..., :1])], axis=3)
    logits = tf.cast(products_with(_flat(key), query), dtype)
    # The blocks of keys in each part. [batch, key_heads, queries, block_size, blocks]
    shape = sizes(logits)
    logits = tf.reshape(logits, [*shape[:3], shape[3] // size(bias, 3), size(bias, 3)])
    logits += tf.cast(bias, dtype)[:, :, :, None]
    return softmax_sums(tf.reshape(logits, shape), _flat(part["value"]), dropout, seed)


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
