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


def tiling_is_faster(block, key):
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


def attend_by_tiles(query, key, value, block, keys, bias, dropout, seed):
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
        keys: int, like `block`, number of keys of the block, the first ones, that the query sees.
        bias: like `block`, added to the logits of the block's keys, without a gradient.
        dropout: float, share of the attention weights set to 0.
        seed: int `[2]`, needed if `dropout` is above 0; or None.

    Returns:
        Tuple of `[batch, key_heads, length, queries, value_depth]` and the logsumexp of the logits,
        `[batch, key_heads, length, queries]`.
    """
    selected = size(block, 4)
    # [batch, key_heads, entries], in the order of (selected block, head, position)
    block, keys, bias = (
        tf.reshape(tf.transpose(x, [0, 1, 4, 3, 2]), [*sizes(x)[:2], -1])
        for x in (block, keys, bias)
    )
    # An entry has its logits, and its query and output in the order of tiles.
    elements = size(block, 2) * (size(key, 3) + 2 * size(key, 4) + 2 * size(value, 4))
    # Sorted once, not again for the gradient.
    order = tf.argsort(block, axis=-1, stable=True)
    entries = {"block": block, "keys": keys, "bias": bias, "order": order}
    return over_heads(
        lambda part: _attend_tiles(**part, selected=selected, dropout=dropout),
        {"query": query, "key": key, "value": value, **entries},
        {},
        {"seed": seed},
        elements * size(block, 0) * size(block, 1),
        (value.dtype, accumulation_dtype(query.dtype)),
    )


def _attend_tiles(query, key, value, block, keys, bias, order, selected, dropout, seed=None):
    """Computes `attend_by_tiles` of some heads, given the order of entries by block."""
    batch, heads, length, queries, depth = sizes(query)
    column = tf.gather(block, order, batch_dims=2)  # [batch, key_heads, entries]
    stairs = staircase(column, order, inverse_permutation(order), TILE_SIZE, size(key, 2), 1)
    query = tf.reshape(tf.transpose(query, [0, 1, 3, 2, 4]), [batch, heads, -1, depth])
    # Entries that another tile computes see no keys here. [batch, key_heads, tiles, TILE_SIZE]
    keys = tf.where(stairs.here, stairs.of_sorted(tf.gather(keys, order, batch_dims=2)), 0)
    # [batch, key_heads, tiles, TILE_SIZE, block_size], as are the logits
    allowed = tf.range(size(key, 3)) < keys[..., None]
    output, logsumexp = attend(
        stairs.of_entries(tf.tile(query, [1, 1, selected, 1])),
        _blocks_of_tiles(key, stairs.column),
        _blocks_of_tiles(value, stairs.column),
        allowed,
        bias=stairs.of_sorted(tf.gather(bias, order, batch_dims=2))[..., None],
        dropout=dropout,
        seed=seed,
    )
    shape = [batch, heads, selected, queries, length]
    output = tf.reshape(stairs.of_rows(output), [*shape, size(value, 4)])
    logsumexp = tf.reshape(stairs.of_rows(logsumexp), shape)
    output = merge(output, logsumexp, axis=2)  # [batch, key_heads, queries, length, value_depth]
    logsumexp = tf.reduce_logsumexp(logsumexp, axis=2)
    return tf.transpose(output, [0, 1, 3, 2, 4]), tf.transpose(logsumexp, [0, 1, 3, 2])


def _blocks_of_tiles(blocks, column):
    """Gathers the block of each tile, `[batch, heads, tiles, block_size, depth]`.

    One gather of whole blocks as rows, whose gradient adds whole rows.
    """
    batch, heads, count, *shape = sizes(blocks)
    rows = tf.reshape(blocks, [batch * heads * count, -1])
    first = tf.reshape(tf.range(batch * heads) * count, [batch, heads, 1])
    return tf.reshape(gather_summed(rows, column + first), [*sizes(column), *shape])


@tf.custom_gradient
def gather_summed(rows, index):
    """Gathers rows. The gradient sums them in float32, see `rt_keras.ops.slices.map_slices`."""

    def gradients(upstream):
        total = tf.zeros_like(rows, accumulation_dtype(rows.dtype))
        total = tf.tensor_scatter_nd_add(total, index[..., None], tf.cast(upstream, total.dtype))
        return tf.cast(total, rows.dtype), None

    return tf.gather(rows, index), gradients
