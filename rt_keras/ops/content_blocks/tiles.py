"""Attention to selected blocks of keys, on tiles of one block and many queries."""

import tensorflow as tf

from rt_keras.ops.attend import accumulation_dtype, attend, merge
from rt_keras.ops.blocks import size, sizes
from rt_keras.ops.nearest.assign import inverse_permutation
from rt_keras.ops.nearest.separate import staircase
from rt_keras.ops.slices import over_heads

# Number of queries in a tile.
TILE_SIZE = 64
# Smaller blocks are gathered for each query.
LEAST_BLOCK_SIZE = 16
# Largest number of rows of tiles per entry. Each block begins a tile, which may be almost empty.
MOST_ROWS = 5


def pays(block, key):
    """Returns whether tiles are faster than gathering the blocks of each query.

    Args:
        block: int `[batch, key_heads, length, queries, selected]`, the blocks of each query.
        key: `[batch, key_heads, blocks, block_size, depth]`.

    Returns:
        bool, False if shapes are unknown.
    """
    *_, length, queries, selected = sizes(block)
    blocks, block_size = size(key, 2), size(key, 3)
    if not all(isinstance(x, int) for x in (length, selected, blocks)):
        return False
    entries = length * queries * selected
    return block_size >= LEAST_BLOCK_SIZE and entries + blocks * TILE_SIZE <= MOST_ROWS * entries


def attend_in_tiles(query, key, value, block, seen, *, bias, dropout, seed):
    """Computes attention of queries to the blocks of keys that they have selected.

    Each query makes an entry with each of its blocks. Entries are sorted by block and computed on
    tiles of up to `TILE_SIZE` entries of one block. Then the outputs of a query's blocks are
    merged. The memory traffic is that of the queries, once for each of their blocks, where
    gathering takes that of all keys in these blocks.

    Args:
        query: `[batch, key_heads, length, queries, depth]`, scaled; `queries` heads share a key
            head.
        key: `[batch, key_heads, blocks, block_size, depth]`.
        value: `[batch, key_heads, blocks, block_size, value_depth]`.
        block: int `[batch, key_heads, length, queries, selected]`, the numbers of the blocks.
        seen: int, like `block`, number of keys of the block, the first ones, that the query sees.
        bias: like `block`, added to the logits of the block's keys, without a gradient.
        dropout: float, share of the attention weights set to 0.
        seed: int `[2]`, needed if `dropout` is above 0; or None.

    Returns:
        Tuple of `[batch, key_heads, length, queries, value_depth]` and the logsumexp of the logits,
        `[batch, key_heads, length, queries]`.
    """
    selected = size(block, 4)
    # Entries are in the order of (selected block, head, position).
    block, seen, bias = (
        tf.reshape(tf.transpose(x, [0, 1, 4, 3, 2]), [*sizes(x)[:2], -1])
        for x in (block, seen, bias)
    )
    # An entry has its logits, and its query and output in the order of tiles.
    elements = size(block, 2) * (size(key, 3) + 2 * size(key, 4) + 2 * size(value, 4))
    of_entries = {
        "block": block,
        "seen": seen,
        "bias": bias,
        # Sorted once, not again for the gradient.
        "order": tf.argsort(block, axis=-1, stable=True),
    }
    return over_heads(
        lambda part: _attend_in_tiles(selected=selected, dropout=dropout, **part),
        {"query": query, "key": key, "value": value, **of_entries},
        {},
        {"seed": seed},
        elements * size(block, 0) * size(block, 1),
        (value.dtype, accumulation_dtype(query.dtype)),
    )


def _attend_in_tiles(query, key, value, block, seen, bias, order, selected, dropout, seed=None):
    """Computes `attend_in_tiles` of entries, given their order.

    Args:
        query, key, value: see `attend_in_tiles`.
        block, seen, bias: `[batch, key_heads, entries]`.
        order: int `[batch, key_heads, entries]`, the entries sorted by block.
        selected: int, number of blocks that a query has selected.
        dropout, seed: see `attend_in_tiles`.
    """
    batch, heads, length, queries, depth = sizes(query)
    column = tf.gather(block, order, batch_dims=2)
    stairs = staircase(column, order, inverse_permutation(order), TILE_SIZE, size(key, 2), 1)
    query = tf.reshape(tf.transpose(query, [0, 1, 3, 2, 4]), [batch, heads, -1, depth])
    # Entries that another tile computes see no keys here.
    seen = tf.where(stairs.here, stairs.of_sorted(tf.gather(seen, order, batch_dims=2)), 0)
    allowed = tf.range(size(key, 3)) < seen[..., None]
    output, logsumexp = attend(
        stairs.of_entries(tf.tile(query, [1, 1, selected, 1])),
        _of_tiles(key, stairs.column),
        _of_tiles(value, stairs.column),
        allowed,
        bias=stairs.of_sorted(tf.gather(bias, order, batch_dims=2))[..., None],
        dropout=dropout,
        seed=seed,
    )
    shape = [batch, heads, selected, queries, length]
    output = tf.reshape(stairs.of_rows(output), [*shape, size(value, 4)])
    logsumexp = tf.reshape(stairs.of_rows(logsumexp[..., None]), shape)
    output = merge(output, logsumexp, axis=2)
    logsumexp = tf.reduce_logsumexp(logsumexp, axis=2)
    return tf.transpose(output, [0, 1, 3, 2, 4]), tf.transpose(logsumexp, [0, 1, 3, 2])


def _of_tiles(blocks, column):
    """Gathers the block of each tile, `[batch, heads, tiles, block_size, depth]`.

    One gather of whole blocks as rows, whose gradient adds whole rows.
    """
    batch, heads, count, *shape = sizes(blocks)
    rows = tf.reshape(blocks, [batch * heads * count, -1])
    first = tf.reshape(tf.range(batch * heads) * count, [batch, heads, 1])
    return tf.reshape(_gather_rows(rows, column + first), [*sizes(column), *shape])


@tf.custom_gradient
def _gather_rows(rows, index):
    """Gathers rows. The gradient sums them in float32, see `rt_keras.ops.slices.map_slices`."""

    def gradients(upstream):
        upstream = tf.cast(upstream, accumulation_dtype(rows.dtype))
        total = tf.zeros_like(rows, upstream.dtype)
        return tf.cast(
            tf.tensor_scatter_nd_add(total, index[..., None], upstream), rows.dtype
        ), None

    return tf.gather(rows, index), gradients
