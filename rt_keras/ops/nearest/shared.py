"""Nearest attention where queries are keys: local attention in the order of (cluster, position).

Also what all nearest attention shares: blocks of sorted queries that attend to windows of sorted
keys.
"""

from typing import NamedTuple

import tensorflow as tf

from rt_keras.ops.attend import accumulation_dtype, attend
from rt_keras.ops.blocks import (
    ceil_div,
    gather_rows,
    join_blocks,
    overlapping_blocks,
    pad_axis,
    size,
    sizes,
    split_blocks,
)
from rt_keras.ops.nearest.assign import sort_by_cluster
from rt_keras.ops.relative import pair_bias
from rt_keras.ops.slices import over_blocks

# Maximum rows of a block: small enough to waste few keys, large enough to fill a matrix unit.
MAX_BLOCK_SIZE = 128


class Options(NamedTuple):
    """The options of attention to the keys of clusters; see `nearest_attention`."""

    num_clusters: int
    window_size: int
    causal: bool = True
    shifted: bool = False  # whether the key of a position is the query of the previous one
    dropout: float = 0.0
    seed: tf.Tensor | None = None
    relative_embeddings: tf.Tensor | None = None  # [heads, 2 m + 1, depth]
    documents: tf.Tensor | None = None  # int [batch, length]
    visible: tf.Tensor | None = None  # bool [batch or 1, length], the keys that may be seen
    bound: float | None = None  # see `attend`
    slices: int = 1  # maximum number of slices of blocks


class QueryBlocks(NamedTuple):
    """Blocks of sorted queries. Each sees the places of its window from `first` to `last` - 1."""

    query: tf.Tensor  # [batch, heads, blocks, queries, depth], scaled
    positions: tf.Tensor  # int [batch, heads, blocks, queries]
    first: tf.Tensor  # int [batch, heads, blocks, queries]
    last: tf.Tensor | None = None  # like `first`; None for all from `first`
    excluded: tf.Tensor | None = None  # like `first`, a place that the query does not see
    query_documents: tf.Tensor | None = None  # int [batch, heads, blocks, queries]
    window: tf.Tensor | None = None  # int [batch, heads, blocks], the first block of its window


class Keys(NamedTuple):
    """Sorted keys `[batch, heads, length, ...]`, blocks of them, or windows of such blocks."""

    key: tf.Tensor
    value: tf.Tensor
    key_positions: tf.Tensor | None = None
    key_documents: tf.Tensor | None = None
    visible: tf.Tensor | None = None
    number: tf.Tensor | None = None  # int, takes the part of the place in a window

    def map(self, function):
        """Applies a function to each tensor."""
        return Keys(*(None if x is None else function(x) for x in self))


def attend_shared(query, key, value, clusters, options):
    """Computes attention with shared queries and keys, in the order of (cluster, position).

    Args:
        query: `[batch, heads, length, depth]`, scaled.
        key, value: `[batch, heads, length, ...]`.
        clusters: int `[batch, heads, 1, length]`, the cluster of each position.
        options: the `Options`.

    Returns:
        `[batch, heads, length, value_depth]`, and the logsumexp `[batch, heads, length]`.
    """
    length, window_size = size(query, 2), options.window_size
    block_size = block_size_of(window_size)
    num_blocks, slices = round_to_slices(ceil_div(length, block_size), options.slices)
    count = ceil_div(window_size, block_size) + 1
    # If keys are shifted, each query is the key of the next position instead.
    before = window_size - (not options.shifted) if options.causal else window_size // 2
    order = sort_by_cluster(clusters, options.num_clusters)
    query = gather_rows(query, order.order, order.rank)
    keys = sort_keys(key, value, order, options)

    def split(x):
        return None if x is None else split_blocks(x, num_blocks, block_size)

    # From a rank to the place in the window of a block.
    shift = before - tf.range(num_blocks)[:, None] * block_size
    # Without regard to clusters, a query sees `window_size` places, `before` of them before itself.
    step = tf.zeros([1, 1, num_blocks, 1], tf.int32) + tf.range(block_size)
    start, end = _bounds(clusters, order, options)
    queries = QueryBlocks(
        query=split(query),
        positions=split(order.order),
        first=tf.maximum(step, split(start) + shift),
        last=step + window_size,
        query_documents=split(keys.key_documents),
    )
    if not options.causal:
        queries = queries._replace(
            last=tf.minimum(queries.last, split(end) + shift),
            excluded=step + before if options.shifted else None,
        )
    if slices > 1:
        window = tf.zeros([size(query, 0), size(query, 1), 1], tf.int32) + tf.range(num_blocks)
        keys, window = split_windows(keys, window, num_blocks + count - 1, block_size, before)
        queries = queries._replace(window=window)
    else:
        keys = keys.map(lambda x: overlapping_blocks(x, num_blocks, block_size, count, before))
    results = attend_blocks(queries, keys, count, slices, options)
    return tuple(gather_rows(join_blocks(x, length), order.rank, order.order) for x in results)


def _bounds(clusters, order, options):
    """Returns the ranks of the first key that each sorted query may see, and after the last."""
    clusters = tf.gather(clusters[:, :, 0], order.order, batch_dims=2)  # [batch, heads, length]
    start = tf.gather(order.starts, clusters, batch_dims=2)
    # Padding sees nothing.
    start = tf.where(clusters < options.num_clusters, start, size(clusters, 2))
    # Of causal queries, the last key is at the query itself.
    end = None if options.causal else tf.gather(order.starts[..., 1:], clusters, batch_dims=2)
    return start, end


def block_size_of(window_size):
    """Returns the block size: the largest equal part of a window up to `MAX_BLOCK_SIZE`."""
    return ceil_div(window_size, ceil_div(window_size, MAX_BLOCK_SIZE))


def round_to_slices(num_blocks, slices):
    """Returns the number of blocks, rounded up to equal slices, and the number of slices."""
    if slices == 1:
        return num_blocks, 1
    at_once = ceil_div(num_blocks, slices)
    slices = ceil_div(num_blocks, at_once)
    return slices * at_once, slices


def sort_keys(key, value, order, options):
    """Sorts the `Keys` `[batch, heads, length, ...]`, with what positions and masks need."""

    def sort(x):
        """Sorts what all heads share, `[batch or 1, length]`."""
        if x is None:
            return None
        return tf.gather(tf.broadcast_to(x[:, None], sizes(key)[:3]), order.order, batch_dims=2)

    positions = None
    if options.relative_embeddings is not None:
        positions = order.order + 1 if options.shifted else order.order
    return Keys(
        gather_rows(key, order.order, order.rank),
        gather_rows(value, order.order, order.rank),
        key_positions=positions,
        key_documents=sort(options.documents),
        visible=sort(options.visible),
    )


def split_windows(keys, window, num_blocks, block_size, before):
    """Splits keys into blocks, of which windows may begin at any.

    Args:
        keys: `Keys` `[batch, heads, length, ...]`.
        window: int `[batch, heads, windows]`, the first block of each window.
        num_blocks: int, number of blocks.
        block_size: int, positions in a block.
        before: int, number of zeros before the first position.

    Returns:
        The `Keys`, `[batch * heads * num_blocks, block_size, ...]`, and the index of each window's
        first block among these.
    """
    batch, heads = size(window, 0), size(window, 1)

    def split(x):
        x = split_blocks(pad_axis(x, 2, before, 0), num_blocks, block_size)
        return tf.reshape(x, [batch * heads * num_blocks, *sizes(x)[3:]])

    sequence = tf.reshape(tf.range(batch * heads), [batch, heads, 1])
    return keys.map(split), sequence * num_blocks + window


def cut_windows(x, window, count):
    """Gathers windows of `count` blocks, `[batch, heads, windows, count * block_size, ...]`."""
    if count == 1:
        return tf.gather(x, window)
    x = tf.gather(x, window[..., None] + tf.range(count))
    *shape, count, block_size = sizes(x)[:5]
    return tf.reshape(x, [*shape, count * block_size, *sizes(x)[5:]])


def attend_blocks(queries, keys, count, slices, options):
    """Computes attention of blocks of queries to windows of keys, some slices of blocks at a time.

    Args:
        queries: `QueryBlocks`.
        keys: `Keys`: windows `[batch, heads, blocks, keys, ...]`; or blocks
            `[..., block_size, ...]` from which `queries.window` cuts them.
        count: int, number of blocks in a window.
        slices: int, number of slices, a divisor of the number of blocks.
        options: the `Options`.

    Returns:
        The output of each block's queries, `[batch, heads, blocks, queries, value_depth]`, and the
        logsumexp `[batch, heads, blocks, queries]`.
    """

    def attend_slice(part):
        queries, keys = (kind(*map(part.get, kind._fields)) for kind in (QueryBlocks, Keys))
        if queries.window is not None:
            keys = keys.map(lambda x: cut_windows(x, queries.window, count))
        return _attend(queries, keys, part.get("relative_embeddings"), part.get("seed"), options)

    dtypes = keys.value.dtype, accumulation_dtype(keys.key.dtype)
    whole = {"relative_embeddings": options.relative_embeddings, "seed": options.seed}
    whole |= keys._asdict()
    return over_blocks(attend_slice, queries._asdict(), whole, slices, dtypes)


def _attend(queries, keys, relative_embeddings, seed, options):
    """Computes the attention of blocks to their windows, and the logsumexp."""
    bias = None
    if relative_embeddings is not None:
        positions = queries.positions, keys.key_positions
        bias = pair_bias(queries.query, relative_embeddings, *positions)
    # [batch, heads, blocks, 1, keys], or [keys]
    places = tf.range(size(keys.key, 3)) if keys.number is None else keys.number[..., None, :]
    allowed = places >= queries.first[..., None]  # [batch, heads, blocks, queries, keys]
    if queries.last is not None:
        allowed &= places < queries.last[..., None]
    if queries.excluded is not None:
        allowed &= places != queries.excluded[..., None]
    masks = (allowed,)
    if keys.key_documents is not None:
        masks += (keys.key_documents[..., None, :] == queries.query_documents[..., None],)
    if keys.visible is not None:
        masks += (keys.visible[..., None, :],)
    return attend(
        queries.query,
        keys.key,
        keys.value,
        masks,
        bias=bias,
        bound=options.bound if bias is None else None,
        dropout=options.dropout,
        seed=seed,
    )
