"""Attention to selected blocks as products with all keys within reach, by TensorFlow's kernels.

These kernels are fast at large products and slow at gathering: without a compiler, a CPU multiplies
a query by thousands of keys in less time than it gathers 128 of them.
"""

from typing import NamedTuple

import tensorflow as tf

from rt_keras.ops.attend import MASKED, accumulation_dtype, softmax_sums
from rt_keras.ops.block_selection import FADE, LOG_OF_NOTHING, NODE_SIZE, with_deviation
from rt_keras.ops.blocks import ceil_div, pad_axis, size, sizes
from rt_keras.ops.chunks import map_chunks


class Extent(NamedTuple):
    """The blocks within reach of each window of queries.

    Attributes:
        window: tuple of two ints; see `selected_blocks_attention`.
        causal: bool.
        memory_length: int or None.
    """

    window: tuple
    causal: bool
    memory_length: int | None

    def within_reach(self, x, number, unit):
        """Returns the units within reach of a window of queries.

        Args:
            x: `[batch or 1, key_heads or 1, parts, units + 1, depth]`. The last unit is empty.
            number: int scalar, the number of the window.
            unit: int, number of keys in a unit.
        """
        window_size, look_back = self.window
        before, first = tf.maximum(number - look_back, 0) * window_size, 0
        if self.memory_length is not None:
            first = tf.maximum(before - self.memory_length, 0) // unit
        found = x[:, :, :, first : before // unit]
        if self.causal:
            return found
        # The empty unit is there for windows that reach no other.
        after = tf.minimum((number + look_back + 1) * window_size // unit, size(x, 3) - 1)
        return tf.concat([found, x[:, :, :, after:]], axis=3)


def attend_to_masked(
    query, blocks, extent, counts, num_blocks, num_nodes, deviation_weight, dropout, seed
):
    """Computes what `attend_to_best` does, for the queries of a window at a time.

    The queries of a window have the same blocks within reach. The gradient recomputes their logits.

    Args:
        query: `[batch, heads, length, depth]`, from the first position.
        blocks, counts, num_blocks, num_nodes, deviation_weight: see `attend_to_best`.
        extent: `Extent` of the queries.
        dropout, seed: see `attend_to_best`.

    Returns:
        Tuple of `[batch, heads, length, value_depth]` and the logsumexp of the logits,
        `[batch, heads, length]`.
    """
    options = counts, num_blocks, num_nodes, deviation_weight, dropout, seed
    window, look_back = extent.window
    first, windows = look_back + 1 if extent.causal else 0, ceil_div(size(query, 2), window)

    def of_windows():
        return _attend_to_masked(query, blocks, extent, first, windows, *options)

    def of_none():
        return no_attention(query, blocks["value"])

    if isinstance(windows, int):
        return of_windows() if windows > first else of_none()
    return tf.cond(windows > first, of_windows, of_none)


def _attend_to_masked(
    query,
    blocks,
    extent,
    first,
    windows,
    counts,
    num_blocks,
    num_nodes,
    deviation_weight,
    dropout,
    seed,
):
    """Computes `attend_to_masked` if there are queries in windows from `first` on."""
    (batch, heads, length, depth), key_heads = sizes(query), blocks["key"].shape[1]
    window = extent.window[0]
    # The heads of a key head are consecutive.
    shape = [batch, key_heads, heads // key_heads, windows - first, window]
    query = pad_axis(query[:, :, first * window :] * depth**-0.5, 2, 0, windows * window - length)
    # [windows, batch, key_heads, queries, depth]
    query = tf.transpose(tf.reshape(query, [*shape, depth]), [3, 0, 1, 2, 4, 5])
    query = tf.reshape(query, [shape[3], batch, key_heads, shape[2] * window, depth])
    stacked = {"query": query, "number": tf.range(first, windows)}
    if dropout:
        stacked["seed"] = tf.random.split(seed, shape[3])
    parts, unit = _parts_of_units(blocks, counts, num_nodes is not None)

    def attend_window(part, whole):
        whole = {x: extent.within_reach(whole[x], part["number"], unit) for x in whole}
        bias = _log_weights(part["query"], whole, num_blocks, num_nodes, deviation_weight)
        return _attend(part["query"], whole, bias, dropout, part.get("seed"))

    dtypes = blocks["value"].dtype, accumulation_dtype(query.dtype)
    found = map_chunks(attend_window, stacked, parts, dtypes)

    def of_positions(x, fill):
        # [windows, batch, key_heads, queries, ...] to [batch, heads, length, ...]
        x = tf.reshape(x, [shape[3], *shape[:3], window, size(x, 4)])
        x = tf.reshape(tf.transpose(x, [1, 2, 3, 0, 4, 5]), [batch, heads, -1, size(x, 5)])
        return pad_axis(x, 2, first * window, 0, fill)[:, :, :length]

    return of_positions(found[0], 0), of_positions(found[1][..., None], MASKED)[..., 0]


def _parts_of_units(blocks, counts, has_nodes):
    """Lays out blocks such that products broadcast along rows: one unit after the other.

    Args:
        blocks, counts: see `attend_to_best`.
        has_nodes: bool, whether a unit is a node instead of a block.

    Returns:
        Tuple of a dictionary of tensors `[batch or 1, key_heads or 1, parts, units + 1, depth]`,
        and the number of keys in a unit. Parts of "key" and "value" are keys, first the first key
        of each block of a unit; parts of "mean" and "variance" are blocks, and those of "node_mean"
        and "node_variance" are nodes. "no_key", "no_block" and "no_node" are `MASKED` where there
        is none, else 0.
    """
    batch, key_heads, total, _ = sizes(blocks["mean"])
    per_unit = NODE_SIZE if has_nodes else 1
    block_size, units = size(blocks["key"], 2) // total, total // per_unit

    def of_keys(x, fill=0):
        x = tf.reshape(x, [*sizes(x)[:2], units, per_unit, block_size, size(x, 3)])
        x = tf.transpose(x, [0, 1, 4, 3, 2, 5])
        x = tf.reshape(x, [*sizes(x)[:2], block_size * per_unit, units, size(x, 5)])
        return pad_axis(x, 3, 0, 1, fill)

    def of_blocks(x, fill=0):
        x = tf.reshape(x, [*sizes(x)[:2], units, -1, size(x, 3)])
        return pad_axis(tf.transpose(x, [0, 1, 3, 2, 4]), 3, 0, 1, fill)

    def missing(real, lay_out):
        # [batch or 1, ...] to [batch or 1, 1, ..., 1]
        found = tf.where(real, 0.0, tf.constant(MASKED))
        return lay_out(tf.cast(found, blocks["key"].dtype)[:, None, ..., None], MASKED)

    summaries = {x: of_blocks(tf.stop_gradient(blocks[x])) for x in ("mean", "variance")}
    if has_nodes:
        nodes = "node_mean", "node_variance"
        summaries |= {x: of_blocks(tf.stop_gradient(blocks[x])) for x in nodes}
        real = tf.reduce_any(tf.reshape(counts, [size(counts, 0), units, per_unit]) > 0, axis=2)
        summaries["no_node"] = missing(real, of_blocks)
    real = tf.reshape(tf.range(block_size) < counts[..., None], [size(counts, 0), -1])
    return {
        "key": of_keys(blocks["key"]),
        "value": of_keys(blocks["value"]),
        "no_key": missing(real, of_keys),
        "no_block": missing(counts > 0, of_blocks),
        **summaries,
    }, block_size * per_unit


def _log_weights(query, part, num_blocks, num_nodes, deviation_weight):
    """Returns the logs of the weights of blocks, `[batch, key_heads, queries, blocks]`."""
    query, of_nodes = tf.stop_gradient(query), 0.0

    def score(prefix, missing):
        summaries = (_flat(part[f"{prefix}{x}"]) for x in ("mean", "variance"))
        found = with_deviation(_products, summaries, query, deviation_weight)
        return found + tf.linalg.matrix_transpose(_flat(part[missing]))

    found = score("", "no_block")
    if num_nodes is not None:
        nodes = score("node_", "no_node")
        of_nodes = tf.where(nodes > MASKED / 2, _fading(nodes, num_nodes), MASKED)
        # Each part has a block of every node. [batch, key_heads, queries, parts, units]
        shape = [*sizes(found)[:3], size(part["mean"], 2), size(nodes, 3)]
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
    weight = tf.clip_by_value((score - least) / FADE, 0, 1)
    return tf.maximum(tf.math.log(weight), LOG_OF_NOTHING)


def _attend(query, part, bias, dropout, seed):
    """Computes attention to keys with a bias `[batch, key_heads, queries, blocks]`."""
    dtype = accumulation_dtype(query.dtype)
    # The last column of the product is the bias of keys.
    key = tf.concat([part["key"], tf.broadcast_to(part["no_key"], [*sizes(part["key"])[:4], 1])], 4)
    query = tf.concat([query, tf.ones_like(query[..., :1])], axis=3)
    logits = tf.cast(_products(_flat(key), query), dtype)
    # The blocks of keys in each part. [batch, key_heads, queries, block_size, blocks]
    shape = sizes(logits)
    logits = tf.reshape(logits, [*shape[:3], -1, size(bias, 3)])
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
    return tf.reshape(x, [*sizes(x)[:2], -1, size(x, 4)])


def _products(rows, vectors):
    return tf.matmul(vectors, rows, transpose_b=True)
