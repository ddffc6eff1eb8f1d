"""Attention of tiles of queries to spans of keys, by TensorFlow's own kernels on a CPU.

Without a compiler, each operation reads and writes memory. The logits of a tile, some consecutive
queries, stay in the processor's cache from one operation to the next, and none are kept: the
gradient computes them again from the logsumexp.
"""

import functools
import math

import tensorflow as tf

from rt_keras.ops.attend import (
    MASKED,
    accumulation_dtype,
    drop,
    softmax_sums,
    where_all,
)
from rt_keras.ops.blocks import (
    ceil_div,
    flatten_blocks,
    larger,
    pad_axis,
    repeat_rows,
    size,
    sizes,
)

# Number of positions of a tile, and of their logits.
TILE_SIZE, LOGITS_OF_TILE = 128, 2**23
# While one tile waits for the products of another, it is computed with them.
TILES_AT_ONCE = 2


def attend_to_spans(
    query,
    key,
    value,
    neighborhood,
    *,
    keys_before=0,
    block_numbers=None,
    key_mask=None,
    dropout=0.0,
    seed=None,
):
    """Computes what `attend` does, for the positions of a tile at a time.

    Args:
        query: `[batch, heads, length, depth]`, already scaled.
        key, value: `[batch, key_heads, keys, depth]`.
        neighborhood: the `Neighborhood` of queries, whose keys are consecutive.
        keys_before: int, number of keys before the first query. Defaults to 0.
        block_numbers: int `[batch, length]`, the blocks of queries and keys, instead of those by
            position; or None.
        key_mask: bool `[batch, keys]`, False for padding; or None.
        dropout, seed: see `attend`.

    Returns:
        Tuple of `[batch, heads, length, value_depth]` and the logsumexp of the logits
        `[batch, heads, length]`.
    """
    tile_size = positions_per_tile(query, neighborhood.width(size(key, 2)))
    tiles = _SpanTiles(neighborhood, tile_size, query, key, keys_before, block_numbers, key_mask)
    key, value = key[:, :, None], value[:, :, None]  # [batch, key_heads, 1, keys, depth]
    return attend_in_tiles(query, key, value, tile_size, tiles, dropout, seed)


class _SpanTiles:
    """The keys of tiles; see `attend_in_tiles`."""

    def __init__(self, neighborhood, tile_size, query, key, first, block_numbers, key_mask):
        self.neighborhood, self.tile_size, self.keys = neighborhood, tile_size, size(key, 2)
        self.first, self.block_numbers = first, block_numbers
        self.groups = query.shape[1] // key.shape[1]
        self.dtype = accumulation_dtype(query.dtype)
        self.key_mask = None if key_mask is None else tf.cast(key_mask, tf.bool)
        # Of whole blocks, a tile's keys are in blocks that are near enough.
        block_size = neighborhood.block_size
        self.is_in_one_block = block_size is not None and block_size % tile_size == 0

    def span(self, index):
        first, numbered = self.first + index * self.tile_size, self.block_numbers is not None
        return self.neighborhood.ends(first, first + self.tile_size - 1, self.keys, numbered)

    def selection(self, index, first, end, saved):
        places, keys = index * self.tile_size + tf.range(self.tile_size), tf.range(first, end)
        queries, blocks_apart = self.first + places[:, None], None
        if self.block_numbers is not None:
            # There may be padding after the last query.
            numbers = tf.pad(self.block_numbers, [[0, 0], [0, self.tile_size]])
            numbers = tf.gather(numbers, self.first + places, axis=1)  # [batch, tile_size]
            blocks_apart = numbers[:, None, :, None] - self.block_numbers[:, None, None, first:end]
        elif not self.is_in_one_block:
            blocks_apart = self.neighborhood.blocks_apart(queries, keys)
        # [tile_size, keys], or [batch, 1, tile_size, keys] by the numbers of blocks
        masks = self.neighborhood.masks(queries, keys, blocks_apart)
        masks = [repeat_rows(mask, self.groups) for mask in masks]
        if self.key_mask is not None:
            masks.append(self.key_mask[:, None, None, first:end])
        # One mask costs less than several selections among logits.
        masks = [functools.reduce(tf.logical_and, masks)] if masks else []
        return masks, tf.zeros([0], self.dtype)

    def logits(self, products, selection):
        return where_all(selection, products, tf.constant(MASKED, products.dtype))


def positions_per_tile(query, keys):
    """Returns the number of positions of a tile, for queries that each see a number of keys."""
    batch, heads, length, _ = query.shape
    most = TILE_SIZE
    if isinstance(keys, int):
        # An unknown batch counts as one row.
        most = min(most, max(1, LOGITS_OF_TILE // max(1, (batch or 1) * heads * keys)))
    return most if length is None else max(1, min(most, length))


def split_tiles(x, key_heads, tile_size):
    """Splits queries to `[tiles, batch, key_heads, heads / key_heads * tile_size, depth]`."""
    batch, heads, length, depth = sizes(x)
    # The results of no tile at all would have no shape.
    count, groups = larger(ceil_div(length, tile_size), 1), heads // key_heads
    x = pad_axis(x, 2, 0, count * tile_size - length)
    x = tf.transpose(tf.reshape(x, [batch, heads, count, tile_size, depth]), [2, 0, 1, 3, 4])
    return tf.reshape(x, [count, batch, key_heads, groups * tile_size, depth])


def _join_tiles(x, heads, length):
    """Inverts `split_tiles`. `[batch, heads, length, depth]`."""
    count, batch, key_heads, rows, depth = sizes(x)
    tile_size = rows * key_heads // heads
    x = tf.transpose(tf.reshape(x, [count, batch, heads, tile_size, depth]), [1, 2, 0, 3, 4])
    return tf.reshape(x, [batch, heads, count * tile_size, depth])[:, :, :length]


def attend_in_tiles(query, key, value, tile_size, tiles, dropout=0.0, seed=None):
    """Computes attention of each tile of queries to a span of the keys.

    ```
    output_i = sum_j p_ij value_j,    p_ij = softmax_j(logit_ij)
    ```

    Args:
        query: `[batch, heads, length, depth]`, already scaled. The rows of a tile are those of
            `split_tiles`.
        key, value: `[batch, key_heads, parts, units, depth]`.
        tile_size: int, number of positions of a tile; see `positions_per_tile`.
        tiles: object with three methods. `span(index)` returns the first unit of a tile's keys and
            the unit after the last. `selection(index, first, end, saved)` returns anything that
            determines which of these keys queries see, and what of it is saved for the gradient,
            `[batch, key_heads, rows, any]`; `saved` is None in the forward pass.
            `logits(products, selection)` returns the logits from the products of queries and keys,
            both `[batch, key_heads, rows, parts * (end - first)]`: the products, to which anything
            without a gradient may be added, or `MASKED` for keys that a query does not see.
        dropout: float, share of the attention weights set to 0. Defaults to 0.
        seed: int `[2]`, needed if `dropout` is above 0.

    Returns:
        The output `[batch, heads, length, value_depth]`, and the logsumexp of the logits
        `[batch, heads, length]`; see `attend`.

    Source: Dao et al. 2022, FlashAttention, section 3.1, which has this gradient.
    """
    heads, length = query.shape[1], size(query, 2)
    query = split_tiles(query, key.shape[1], tile_size)
    seeds = tf.random.split(seed, size(query, 0)) if dropout else None

    @tf.custom_gradient
    def attend(query, key, value):
        passes = _Passes(query, key, value, tiles, dropout, seeds)
        output, logsumexp, saved = passes.forward()
        results = output, logsumexp, saved
        return (output, logsumexp), lambda *upstream: passes.backward(results, upstream)

    output, logsumexp = attend(query, key, value)
    output, logsumexp = (_join_tiles(x, heads, length) for x in (output, logsumexp[..., None]))
    return output, logsumexp[..., 0]


class _Passes:
    """The arguments of `attend_in_tiles`, with split queries; its forward and backward passes."""

    def __init__(self, query, key, value, tiles, dropout, seeds):
        self.query, self.key, self.value = query, key, value
        self.tiles, self.dropout, self.seeds = tiles, dropout, seeds
        self.count, self.dtype = size(query, 0), accumulation_dtype(query.dtype)

    def forward(self):
        """Returns outputs, logsumexps and what is saved, `[tiles, batch, key_heads, rows, ...]`."""
        return tf.map_fn(
            self._attend,
            tf.range(self.count),
            parallel_iterations=TILES_AT_ONCE,
            fn_output_signature=(self.value.dtype, self.dtype, self.dtype),
        )

    def backward(self, results, upstream):
        """Returns the gradients of queries, keys and values."""

        def step(index, query_gradients, *totals):
            gradients = self._gradients(index, *[x[index] for x in (*results, *upstream)])
            first, end = self.tiles.span(index)
            totals = [_plus(x, part, first, end) for x, part in zip(totals, gradients[1:])]
            return index + 1, query_gradients.write(index, gradients[0]), *totals

        totals = [tf.zeros(tf.shape(x), self.dtype) for x in (self.key, self.value)]
        array = tf.TensorArray(self.query.dtype, self.count, element_shape=self.query.shape[1:])
        _, query_gradients, *totals = tf.while_loop(
            lambda index, *_: index < self.count,
            step,
            (tf.constant(0), array, *totals),
            parallel_iterations=TILES_AT_ONCE,
        )
        return query_gradients.stack(), *(
            tf.cast(total, x.dtype) for total, x in zip(totals, (self.key, self.value))
        )

    def _attend(self, index):
        first, end = self.tiles.span(index)
        logits, saved = self._logits(index, first, end, None)
        value = _units(self.value, first, end)
        return *softmax_sums(logits, value, self.dropout, self._seed(index)), saved

    def _logits(self, index, first, end, saved):
        """Returns the logits of a tile, `[batch, key_heads, rows, keys]`, and what is saved."""
        products = tf.matmul(self.query[index], _units(self.key, first, end), transpose_b=True)
        selection, saved = self.tiles.selection(index, first, end, saved)
        return self.tiles.logits(tf.cast(products, self.dtype), selection), saved

    def _seed(self, index):
        return None if self.seeds is None else self.seeds[index]

    def _gradients(self, index, output, logsumexp, saved, output_gradient, logsumexp_gradient):
        """Computes the gradients of a tile's queries, and of the keys and values in its span."""
        first, end = self.tiles.span(index)
        has_keys = logsumexp > MASKED / 2
        output_gradient = tf.where(has_keys[..., None], output_gradient, 0)
        logits, _ = self._logits(index, first, end, saved)
        # All weights of a query without keys are 0.
        weights = tf.exp(logits - tf.where(has_keys, logsumexp, 0)[..., None])
        products = tf.matmul(output_gradient, _units(self.value, first, end), transpose_b=True)
        products = drop(tf.cast(products, self.dtype), self.dropout, self._seed(index))
        mean = tf.reduce_sum(tf.cast(output_gradient * output, self.dtype), axis=-1)
        mean -= logsumexp_gradient
        logits_gradient = tf.cast(weights * (products - mean[..., None]), self.query.dtype)
        weights = tf.cast(drop(weights, self.dropout, self._seed(index)), self.value.dtype)
        return (
            tf.matmul(logits_gradient, _units(self.key, first, end)),
            tf.matmul(logits_gradient, self.query[index], transpose_a=True),
            tf.matmul(weights, output_gradient, transpose_a=True),
        )


def _units(x, first, end):
    """Returns some units, `[batch, key_heads, parts * (end - first), depth]`."""
    return flatten_blocks(x[:, :, :, first:end])


def _plus(total, x, first, end):
    """Adds the gradient of a span to the total, `[batch, key_heads, parts, units, depth]`."""
    (*rows, units, depth), shape = sizes(total), tf.shape(total)
    start = tf.range(math.prod(rows))[:, None] * units
    places = tf.reshape(start + tf.range(first, end), [-1, 1])
    total = tf.reshape(total, [-1, depth])
    x = tf.cast(tf.reshape(x, [-1, depth]), total.dtype)
    return tf.reshape(tf.tensor_scatter_nd_add(total, places, x), shape)
