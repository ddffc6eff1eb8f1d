"""Selection of the blocks of keys with the highest scores for a query."""

from typing import NamedTuple

import tensorflow as tf

from rt_keras.ops.attend import MASKED
from rt_keras.ops.blocks import ceil_div, pad_axis, size, sizes, smaller
from rt_keras.ops.content_blocks.largest import indices_of_largest_in_groups
from rt_keras.ops.devices import has_accelerator
from rt_keras.ops.slices import over_blocks

# Number of blocks in a node of the tree.
NODE_SIZE = 8
# A block or node has its full weight if its score exceeds the best unselected one by this much.
FADE = 0.05
# Its exp() is 0, and float16 can represent it.
LOG_OF_NOTHING = -1e4
# With a `memory_length`, a chunk is read in slices of at least this many positions. Smaller slices
# save memory but take longer to compile.
SLICE_LENGTH = 256
# Numbers of elements that are gathered at once, and of scores of nodes' blocks that are compared at
# once. They fit into the cache of a CPU core. Scores of all blocks come from larger products.
# Accelerators, which need more work at once, take `ON_ACCELERATORS` elements of any of them.
GATHERED_AT_ONCE = 2**17
COMPARED_AT_ONCE = 2**16
SCORED_AT_ONCE = 2**20
ON_ACCELERATORS = 2**25


class Blocks(NamedTuple):
    """Keys in the order of their blocks, and what queries compare before they select blocks.

    Attributes:
        key, value: `[batch, key_heads, places, ...]`.
        mean, variance: `[batch, key_heads, blocks, depth]`, those of the keys of each block.
        node_mean, node_variance: `[batch, key_heads, nodes, depth]`, those of each node; or None.
        counts: int `[batch or 1, blocks]`, number of keys in each block.
        number: int `[batch or 1, blocks]`, the number of each block in the sequence; None if they
            are in order. The numbers in a node are consecutive.
    """

    key: tf.Tensor
    value: tf.Tensor
    mean: tf.Tensor
    variance: tf.Tensor
    node_mean: tf.Tensor | None
    node_variance: tf.Tensor | None
    counts: tf.Tensor
    number: tf.Tensor | None = None

    def numbers(self):
        """Returns the number of each block in the sequence, int `[batch or 1, blocks]`."""
        return tf.range(size(self.mean, 2))[None] if self.number is None else self.number


class Reach(NamedTuple):
    """Bounds of the blocks that queries may select, int `[batch or 1, length]`.

    Attributes:
        before: queries may select blocks before this one.
        after: queries may also select blocks from this one on.
        first: queries may not select blocks before this one. None for no such bound.
    """

    before: tf.Tensor
    after: tf.Tensor
    first: tf.Tensor | None = None


class BlockOptions(NamedTuple):
    """Options of the division of segments into blocks, and of their selection by queries.

    See `selected_blocks_attention`.
    """

    block_size: int
    num_blocks: int
    segment_size: int
    window: tuple
    by_content: bool = True
    deviation_weight: float = 1.0
    num_nodes: int | None = None
    num_first_tokens: int = 0
    memory_length: int | None = None

    @property
    def is_ring(self):
        """True if a cache is a ring, in which later positions replace earlier ones."""
        return self.memory_length is not None

    @property
    def levels(self):
        """The names of mean and variance, by the number of keys of a block and of a node."""
        levels = {self.block_size: ("mean", "variance")}
        if self.block_size * NODE_SIZE <= self.segment_size:
            levels[self.block_size * NODE_SIZE] = "node_mean", "node_variance"
        return levels

    @property
    def places_of_ring(self):
        """The number of places of a ring.

        A query sees up to `memory_length` positions before its window, and the window has up to
        `(look_back + 1) * window_size`. Further places hold the positions of a slice that follow
        its first query.
        """
        window_size, look_back = self.window
        return self.memory_length + (look_back + 1) * window_size + self.slice_length

    @property
    def slice_length(self):
        """The number of positions in a slice, a multiple of `segment_size`."""
        return ceil_div(SLICE_LENGTH, self.segment_size) * self.segment_size


def select_blocks(query, blocks, reach, options):
    """Selects the blocks with the largest scores; see `selected_blocks_attention`.

    Args:
        query: `[batch, key_heads, length, queries, depth]`, scaled; `queries` heads share a key
            head.
        blocks, reach, options: `Blocks`, `Reach` of the queries, and `BlockOptions`.

    Returns:
        Tuple of the blocks, int `[batch, key_heads, length, queries, selected]`, the number of keys
        in each, 0 for those that a query may not select, and the bias added to the logits of these
        keys.
    """
    batch, key_heads, total, depth = sizes(blocks.mean)
    counts = tf.broadcast_to(blocks.counts, [batch, total])
    mean, variance = (tf.cast(x, query.dtype) for x in (blocks.mean, blocks.variance))
    shared = {"numbers": blocks.numbers(), "counts": counts}
    scores = size(query, 3) * key_heads * total
    if options.num_nodes is None:
        choose, at_once = _best, SCORED_AT_ONCE
        shared |= {"mean": mean, "variance": variance}
    else:
        choose, at_once = _best_of_nodes, COMPARED_AT_ONCE
        scores = size(query, 3) * key_heads * NODE_SIZE * options.num_nodes
        # One row per node.
        rows = [batch * key_heads * (total // NODE_SIZE), NODE_SIZE * depth]
        shared |= {
            "mean": tf.reshape(mean, rows),
            "variance": tf.reshape(variance, rows),
            "node_mean": tf.cast(blocks.node_mean, query.dtype),
            "node_variance": tf.cast(blocks.node_variance, query.dtype),
        }

    def choose_blocks(part):
        block, score, bias = choose(part, options)
        keys = tf.gather(part["counts"], block, batch_dims=1)
        return block, tf.where(score > MASKED / 2, keys, 0), bias

    per_query = {"query": tf.stop_gradient(query)}
    per_query |= {name: x[:, None] for name, x in reach._asdict().items() if x is not None}
    dtypes = tf.int32, tf.int32, query.dtype
    block, keys, bias = over_queries(choose_blocks, per_query, shared, scores, at_once, dtypes)
    return block, keys, tf.stop_gradient(bias)


def over_queries(function, per_query, shared, elements, at_once, dtype):
    """Runs a function on some positions at a time.

    Args:
        function: function of a dictionary of arguments, with any number of positions, that returns
            `[batch, heads, positions, ...]` or a tuple of such tensors.
        per_query: dictionary of arguments `[batch or 1, heads or 1, length, ...]`.
        shared: dictionary of arguments that are passed whole; None entries are left out.
        elements: int, number of elements that one position has in memory.
        at_once: int, maximum number of elements at once on a CPU.
        dtype: dtype of the results of the function, or a tuple of dtypes.
    """
    query = per_query["query"]
    batch, length = query.shape[0] or 1, size(query, 2)
    shared = {name: x for name, x in shared.items() if x is not None}
    if not (isinstance(length, int) and isinstance(elements, int) and length > 0):
        return function({**per_query, **shared})
    if has_accelerator():
        at_once = ON_ACCELERATORS
    positions = min(max(at_once // (batch * elements), 1), length)
    slices = ceil_div(length, positions)
    missing = slices * positions - length
    per_query = {name: pad_axis(x, 2, 0, missing) for name, x in per_query.items()}
    results = over_blocks(function, per_query, shared, slices, dtype)
    return tf.nest.map_structure(lambda x: x[:, :, :length], results)


def _best(part, options):
    """Returns the best of all blocks, their scores, and the bias of their logits."""
    # [batch, key_heads, length, queries, blocks]
    score = _scores(part["query"], part["mean"], part["variance"], options.deviation_weight)
    usable = _within_reach(part["numbers"], part) & (part["counts"][:, None, None, None] > 0)
    return _largest(_masked(score, usable), options.num_blocks)


def _best_of_nodes(part, options):
    """Returns the best blocks of the best nodes, their scores, and the bias of their logits.

    "mean" and "variance" are those of the blocks of each node,
    `[batch * key_heads * nodes, NODE_SIZE * depth]`.
    """
    query, node_mean = part["query"], part["node_mean"]
    batch, key_heads, length, queries, depth = sizes(query)
    nodes = size(node_mean, 2)
    # [batch, key_heads, length, queries, nodes]
    score = _scores(query, node_mean, part["node_variance"], options.deviation_weight)
    counts = tf.reshape(part["counts"], [batch * nodes, NODE_SIZE])
    has_keys = tf.reduce_any(tf.reshape(counts, [batch, 1, 1, 1, nodes, NODE_SIZE]) > 0, axis=-1)
    # Windows begin where segments begin, and so where nodes begin.
    usable = _within_reach(part["numbers"][:, ::NODE_SIZE], part) & has_keys
    # [batch, key_heads, length, queries, num_nodes]
    node, score, node_bias = _largest(_masked(score, usable), options.num_nodes)
    sequence = tf.reshape(tf.range(batch), [batch, 1, 1, 1, 1])
    # [batch, key_heads, length, queries, num_nodes, NODE_SIZE]
    usable = tf.gather(counts, node + sequence * nodes) > 0
    usable &= (score > MASKED / 2)[..., None]
    sequence = tf.reshape(tf.range(batch * key_heads), [batch, key_heads, 1, 1, 1])
    blocks = [batch, key_heads, length, queries, size(node, 4) * NODE_SIZE]

    def scores_in_nodes(part):
        def products(rows, vectors):
            shape = [batch, key_heads, -1, *blocks[3:], depth]
            return tf.linalg.matvec(tf.reshape(tf.gather(rows, part["row"]), shape), vectors)

        summaries = part["mean"], part["variance"]
        return with_deviation(products, summaries, part["query"], options.deviation_weight)

    score = over_queries(
        scores_in_nodes,
        {"query": query, "row": node + sequence * nodes},
        {"mean": part["mean"], "variance": part["variance"]},
        2 * key_heads * queries * blocks[4] * depth,
        GATHERED_AT_ONCE,
        query.dtype,
    )
    score += tf.repeat(node_bias, NODE_SIZE, axis=4)
    score = _masked(score, tf.reshape(usable, blocks))
    place, score, bias = _largest(score, options.num_blocks)
    node, node_bias = (tf.gather(x, place // NODE_SIZE, batch_dims=4) for x in (node, node_bias))
    return node * NODE_SIZE + place % NODE_SIZE, score, bias + node_bias


def _largest(score, count):
    """Returns the largest of scores `[..., length]`. Those close to the next largest fade.

    Returns:
        Tuple of their indices, int `[..., count]`, with at most `length` of them, their scores, and
        the logs of their weights, 0 for scores that are not close to the next largest.
    """
    # Of equal scores, those close to the next largest, and so equal to it, have no weight.
    place, next_largest = indices_of_largest_in_groups(score, smaller(count, size(score, -1)))
    score = tf.gather(score, place, batch_dims=score.shape.rank - 1)
    return place, score, log_weight(score, next_largest[..., None])


def log_weight(score, next_largest):
    """Returns the logs of the weights of scores, of which those close to the next largest fade."""
    weight = tf.clip_by_value((score - next_largest) / FADE, 0, 1)
    return tf.maximum(tf.math.log(weight), LOG_OF_NOTHING)


def _scores(query, mean, variance, deviation_weight):
    """Computes the scores of blocks or nodes, `[batch, key_heads, length, queries, count]`."""
    batch, key_heads, length, queries, depth = sizes(query)
    flat = tf.reshape(query, [batch, key_heads, -1, depth])
    score = with_deviation(products_with, (mean, variance), flat, deviation_weight)
    return tf.reshape(score, [batch, key_heads, length, queries, size(mean, 2)])


def products_with(rows, vectors):
    """Multiplies vectors `[..., queries, depth]` by rows `[..., count, depth]`."""
    return tf.matmul(vectors, rows, transpose_b=True)


def with_deviation(products, summaries, query, deviation_weight):
    """Computes scores from means and variances, with a function that multiplies them by queries."""
    mean, variance = summaries
    score = products(mean, query)
    if deviation_weight:
        spread = products(variance, tf.square(query))
        score += deviation_weight * tf.sqrt(tf.maximum(spread, 0))
    return score


def _within_reach(numbers, reach):
    """Returns a mask of the blocks, int `[batch or 1, blocks]`, that each query may select."""
    numbers = numbers[:, None, None, None]
    usable = numbers < reach["before"][..., None, None]
    if "first" in reach:
        usable &= numbers >= reach["first"][..., None, None]
    return usable | (numbers >= reach["after"][..., None, None])


def _masked(score, usable):
    return tf.where(usable, score, tf.cast(MASKED, score.dtype))
