"""Local attention: every query against the blocks around its own, in one dimension or more."""

import math

import numpy as np
import tensorflow as tf

from rt_keras.ops.attend import accumulation_dtype, attend, in_parts, without_padding
from rt_keras.ops.blocks import (
    ceil_div,
    join_blocks,
    join_groups,
    neighbour_blocks,
    of_one_length,
    real_positions,
    repeat_heads,
    repeat_rows,
    size,
    split_blocks,
    split_groups,
)
from rt_keras.ops.cpu_kernels import attend_to_spans
from rt_keras.ops.devices import runs_on_cpu_kernels
from rt_keras.ops.documents import blocks_of_documents
from rt_keras.ops.full import full_attention
from rt_keras.ops.local.neighborhood import Neighborhood, place_of_own_block
from rt_keras.ops.naive import naive_attention, naive_mask
from rt_keras.ops.relative import window_bias
from rt_keras.ops.slices import HeadInputs, over_heads

WITHOUT_KEY_BLOCKS = "Local attention needs as many keys as queries, or a key_block_size."


def naive_local_attention(
    query, key, value, *, relative_embeddings=None, query_mask=None, key_mask=None, **options
):
    """Computes `local_attention` by its equation, in NumPy; `options` are a `Neighborhood`."""
    key, options = query if key is None else key, Neighborhood(**options)
    i, j = np.arange(query.shape[2])[:, None], np.arange(key.shape[2])
    grid, sizes = options.grid_of(len(j)), (options.block_size, options.size_of_key_blocks)
    blocks = [np.unravel_index(x // size, grid) for x, size in zip((i, j), sizes)]
    masks = {"causal": options.causal, "query_mask": query_mask, "key_mask": key_mask}
    allowed = naive_mask(len(i), len(j), **masks)
    before_i, before_j = 0, 0  # blocks in the window of i before that of i, before that of j
    for of_i, of_j, before, after in zip(*blocks, *options.sides):
        step = of_j - of_i  # [queries, keys]
        allowed = allowed & (abs(step) <= before)
        width = before + 1 + after
        before_i, before_j = before_i * width + before, before_j * width + before + step
    if options.sliding_window is not None:
        allowed = allowed & (abs(i - j) < options.sliding_window)
    distances = (before_i - before_j) * sizes[1] + i % sizes[0] - j % sizes[1]
    return naive_attention(query, key, value, allowed, relative_embeddings, distances)


def local_attention(
    query,
    key,
    value,
    *,
    block_size,
    look_back=1,
    grid=None,
    key_block_size=None,
    sliding_window=None,
    keys_before=0,
    causal=False,
    query_mask=None,
    key_mask=None,
    documents=None,
    relative_embeddings=None,
    dropout=0.0,
    seed=None,
    return_logsumexp=False,
):
    """Computes attention of each block of queries to its own block and neighboring blocks.

    ```
    output_i = sum_(j in N(i)) softmax_j(query_i · (key_j + r_ij) / sqrt(depth)) value_j
    ```

    If causal, N(i) are the positions up to i in the block of i and the `look_back` blocks before
    it; otherwise, all positions of these blocks and of the `look_back` blocks after. With a
    `sliding_window`, only those less than that many positions away. The cost is O(n · block_size).

    In more than one dimension, the blocks tile an image and form a `grid`. Positions are then in
    the order of `rt_keras.ops.to_blocks`: block by block in raster order, and in raster order
    inside each block. N(i) are the blocks at most `look_back` away along each dimension. If causal,
    N(i) are those of them that come before the block of i in this order, and the positions up to i
    in its own block.

    Args:
        query: `[batch, heads, length, depth]`.
        key: `[batch, key_heads, keys, depth]`, or None for the queries themselves. Each key head
            serves heads / key_heads consecutive query heads.
        value: `[batch, key_heads, keys, value_depth]`.
        block_size: int, positions in a block. The length need not be a multiple of it.
        look_back: int, number of blocks before its own that a query sees, or a tuple with one int
            for each dimension of `grid`. Defaults to 1.
        grid: tuple of ints, number of blocks along each dimension, whose product times `block_size`
            is the length. Defaults to None, for a sequence.
        key_block_size: int, positions in a block of keys if these are another sequence, which must
            have as many blocks as the queries. Defaults to None, for the same sequence or one of
            the same length.
        sliding_window: int w, to see key j only if `|i - j| < w`; at most `look_back` ·
            `block_size` + 1, so that it lies inside the blocks. Defaults to None, for whole blocks.
        keys_before: int, number of keys before the first query, a multiple of `block_size` and at
            most `look_back` · `block_size`; i and j are then positions in the keys. Defaults to 0.
        causal: bool, whether query i sees key j only if j <= i. Defaults to False.
        query_mask: bool `[batch, length]`, False for padding, whose output is 0; or None.
        key_mask: bool `[batch, keys]`, False for padding, which no query sees; or None.
        documents: int `[batch, length]`, see `rt_keras.ops.documents.number_documents`, which do
            not see one another, and each of which begins with a block; or None. Blocks and keys
            must be those of one sequence.
        relative_embeddings: `[heads, 2 m + 1, depth]`, of r_ij, which depends on i - j, clipped to
            ±m. Distances in more than one dimension, or to keys in blocks of another size, are
            those between indices in N(i). None for no relative positions.
        dropout: float, share of the attention weights set to 0. Defaults to 0.
        seed: int `[2]`, needed if `dropout` is above 0.
        return_logsumexp: bool, whether to also return the logsumexp of each query's logits, which
            `merge` needs to combine the output with attention to other keys. Defaults to False.

    Returns:
        `[batch, heads, length, value_depth]`. A query that may see no key gets 0. With
        `return_logsumexp` also the logsumexp `[batch, heads, length]`, float32 (float64 for
        float64 queries).

    Raises:
        ValueError: if queries and keys differ in length without a `key_block_size`, have different
            numbers of blocks with it, or do not fill the grid; if `key_block_size` differs from
            `block_size` in causal attention; if a `sliding_window` is too wide; if a
            `sliding_window` or `keys_before` is combined with a `grid` or a `key_block_size`; or if
            `keys_before` is not such a multiple.

    Source: Roy et al. 2021, Efficient Content-Based Sparse Attention with Routing Transformers,
    section 3.2; images: Parmar et al. 2018, Image Transformer, section 3.1; r: Shaw et al. 2018;
    `sliding_window`: Beltagy et al. 2020, Longformer, section 3.1.

    >>> x = tf.random.normal([1, 2, 10, 4])
    >>> local_attention(x, x, x, block_size=4, causal=True).shape
    TensorShape([1, 2, 10, 4])
    """
    query, value = (tf.convert_to_tensor(x) for x in (query, value))
    if key is None:
        key, value = query, repeat_heads(value, query.shape[1])
    key = tf.convert_to_tensor(key)
    if key_block_size is None and not keys_before:
        query, value = of_one_length(query, value, WITHOUT_KEY_BLOCKS)
    neighborhood = Neighborhood(block_size, look_back, grid, key_block_size, sliding_window, causal)
    block_numbers = None
    if documents is not None:
        block_numbers = blocks_of_documents(documents, block_size, neighborhood.reach[0])
    windows = LocalWindows(size(query, 2), size(key, 2), neighborhood, keys_before, block_numbers)
    if windows.have_all_keys(size(query, 2), size(key, 2)) and not dropout:
        masks = {"query_mask": query_mask, "key_mask": key_mask, "documents": documents}
        options = {"causal": causal, "return_logsumexp": return_logsumexp}
        tables = {"relative_embeddings": relative_embeddings}
        return full_attention(query, key, value, **masks, **tables, **options)
    shared = {"key_mask": key_mask, "block_numbers": block_numbers, "seed": seed}
    if runs_on_cpu_kernels() and windows.are_spans and relative_embeddings is None:
        query *= query.shape[-1] ** -0.5
        options = {"keys_before": keys_before, "dropout": dropout}
        attended = attend_to_spans(query, key, value, neighborhood, **shared, **options)
    else:
        attended = over_local_heads(
            lambda inputs: _attend_windows(HeadInputs(**inputs), windows, dropout),
            windows,
            {"query": query, "key": key, "value": value},
            {"relative_embeddings": relative_embeddings},
            shared,
            (value.dtype, accumulation_dtype(query.dtype)),
        )
    output, logsumexp = without_padding(*attended, query_mask)
    return (output, logsumexp) if return_logsumexp else output


def over_local_heads(attend_heads, windows, activations, weights, shared, dtype):
    """Runs local attention over all heads, in slices of heads if there are too many logits.

    Args:
        attend_heads: function of the arguments of some heads, with scaled queries. It returns
            `[batch, heads, length, ...]`, or a tuple of such tensors.
        windows: the `LocalWindows` of the attention.
        activations: dictionary of the tensors "query", "key" and "value".
        weights: dictionary of arguments `[heads, ...]`.
        shared: dictionary of arguments shared by all heads.
        dtype: dtype of the result, or a tuple of dtypes.
    """
    query = activations["query"]
    activations = {**activations, "query": query * query.shape[-1] ** -0.5}
    # An unknown batch counts as one row.
    rows = (query.shape[0] or 1) * size(query, 1) * size(query, 2)
    logits = rows * windows.key_block_size
    logits *= math.prod(2 * count + 1 for count in windows.sides[0])
    return over_heads(attend_heads, activations, weights, shared, logits, dtype)


class LocalWindows:
    """The windows of keys around each block of queries.

    Args:
        length, keys: ints or int scalars, numbers of queries and of keys.
        neighborhood: the `Neighborhood` of the queries.
        keys_before: see `local_attention`. Defaults to 0.
        block_numbers: int `[batch, length]`, the blocks of queries and keys, instead of those by
            position; or None. Defaults to None.

    Raises:
        ValueError: if they cannot be combined; see `local_attention`.
    """

    def __init__(self, length, keys, neighborhood, keys_before=0, block_numbers=None):
        neighborhood.check()
        _check_keys_before(keys_before, neighborhood)
        _check_blocks(length + keys_before, keys, neighborhood)
        self.neighborhood, self.block_size = neighborhood, neighborhood.block_size
        self.key_block_size = neighborhood.size_of_key_blocks
        self.grid = neighborhood.grid_of(keys)
        # Number of blocks of keys before the first block of queries.
        self.first = keys_before // self.block_size
        # Windows hold one more block if blocks may begin anywhere.
        before = tuple(count + (block_numbers is not None) for count in neighborhood.reach)
        self.sides = neighborhood._replace(look_back=before).sides
        # Index of the block's first position in its window.
        self.start = place_of_own_block(*self.sides) * self.key_block_size
        # In more dimensions, keys after the own block in the window may be before it in the order.
        self.one_way = neighborhood.causal and len(self.grid) == 1

    def have_all_keys(self, length, keys):
        """Returns whether every query of a sequence of a known length sees all of its keys."""
        known = isinstance(length, int) and length == keys and len(self.grid) == 1
        reach, sliding_window = self.neighborhood.reach, self.neighborhood.sliding_window
        return known and sliding_window is None and self.grid[0] <= reach[0] + 1

    @property
    def are_spans(self):
        """True if the keys of a window are consecutive, and blocks of keys those of queries."""
        return len(self.grid) == 1 and self.key_block_size == self.block_size

    def of_queries(self, x):
        """Splits `[batch, heads, length, ...]` to `[batch, heads, blocks, block_size, ...]`."""
        return split_blocks(x, math.prod(self.grid) - self.first, self.block_size)

    def of_keys(self, x):
        """Cuts windows `[batch, heads, blocks, window, ...]` from `[batch, heads, keys, ...]`."""
        return neighbour_blocks(x, self.key_block_size, self.grid, *self.sides, first=self.first)

    def real_keys(self, keys, key_mask=None):
        """Returns which keys of windows are not padding, bool `[batch or 1, 1, blocks, window]`."""
        return self.of_keys(real_positions(keys, key_mask)[:, None])

    def masks(self, rows, count, blocks_apart=None):
        """Returns which of the first `count` keys of a window queries see, by their positions.

        A list of bool `[rows, count]`, for a slice of the rows of a block, or like `blocks_apart`;
        see `Neighborhood.masks`.
        """
        places = tf.range(self.block_size)[rows, None] + self.start
        return self.neighborhood.masks(places, tf.range(count), blocks_apart)


def _check_keys_before(keys_before, neighborhood):
    """Raises a ValueError if blocks of queries do not align with blocks of keys."""
    block_size, most = neighborhood.block_size, neighborhood.reach[0] * neighborhood.block_size
    aligned = neighborhood.is_one_sequence and keys_before % block_size == 0
    if keys_before and not (aligned and 0 <= keys_before <= most):
        raise ValueError(
            "keys_before must be a multiple of block_size up to look_back · block_size, without "
            f"grid and key_block_size. Received: keys_before={keys_before}, "
            f"block_size={block_size}, look_back={neighborhood.look_back}, "
            f"grid={neighborhood.grid}, key_block_size={neighborhood.key_block_size}"
        )


def _check_blocks(length, keys, neighborhood):
    """Raises a ValueError if blocks of queries and of keys of known sizes do not match."""
    if not (isinstance(length, int) and isinstance(keys, int)):
        return
    block_size, key_block_size = neighborhood.block_size, neighborhood.size_of_key_blocks
    if ceil_div(length, block_size) != ceil_div(keys, key_block_size):
        raise ValueError(
            "Local attention needs as many blocks of keys as of queries. Received: query of length "
            f"{length} in blocks of {block_size}, key of length {keys} in blocks of "
            f"{key_block_size}."
        )
    grid = neighborhood.grid
    if grid is not None and math.prod(grid) * block_size != length:
        raise ValueError(
            f"A grid of {'x'.join(map(str, grid))} blocks of {block_size} positions has "
            f"{math.prod(grid) * block_size}. Received: query of length {length}."
        )


def _attend_windows(inputs, windows, dropout):
    """Computes `local_attention` of some heads, with scaled queries; see `over_local_heads`."""
    query, key, value = inputs.query, inputs.key, inputs.value
    heads, length, block_numbers = query.shape[1], size(query, 2), inputs.block_numbers
    if dropout or inputs.relative_embeddings is not None:
        # These differ from head to head.
        key, value = repeat_heads(key, heads), repeat_heads(value, heads)
    key_heads = key.shape[1]
    # The query heads of one key head become more queries of each block: fewer, larger products.
    groups = heads // key_heads
    real = windows.real_keys(size(key, 2), inputs.key_mask)  # [batch or 1, 1, blocks, window]
    query = windows.of_queries(query)  # [batch, heads, blocks, block_size, depth]
    # [batch, key_heads, blocks, window, depth]
    key, value = windows.of_keys(key), windows.of_keys(value)
    if block_numbers is not None:
        key_numbers = windows.of_keys(block_numbers[:, None])  # [batch, 1, blocks, window]
        block_numbers = windows.of_queries(block_numbers[:, None])  # [..., block_size]

    def attend_rows(rows, columns, seed):
        count, apart, bias = len(range(key.shape[3])[columns]), None, None
        # Masks are [batch or 1, 1, blocks, groups * rows, count] or fewer axes of these.
        allowed = [tf.expand_dims(real[..., columns], -2)]
        if block_numbers is not None:
            apart = block_numbers[..., rows, None] - key_numbers[..., None, columns]
        allowed += [repeat_rows(mask, groups) for mask in windows.masks(rows, count, apart)]
        # [batch, key_heads, blocks, groups * rows, depth]
        queries = join_groups(query[..., rows, :], key_heads)
        if inputs.relative_embeddings is not None:
            start = windows.start + (rows.start or 0)
            table = inputs.relative_embeddings
            bias = window_bias(queries, table, count, start, windows.one_way)
        keys, values = key[..., columns, :], value[..., columns, :]
        attended = attend(
            queries, keys, values, tuple(allowed), bias=bias, dropout=dropout, seed=seed
        )
        return tuple(split_groups(x, heads) for x in attended)

    attended = in_parts(
        attend_rows, windows.block_size, windows.one_way, windows.start, inputs.seed
    )
    return tuple(join_blocks(x, length) for x in attended)
