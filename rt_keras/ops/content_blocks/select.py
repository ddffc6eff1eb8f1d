"""Selection of the blocks of keys with the highest scores for a query."""

import tensorflow as tf

from rt_keras.ops.attend import MASKED
from rt_keras.ops.blocks import ceil_div, pad_axis, size, sizes, smaller
from rt_keras.ops.content_blocks.largest import indices_of_largest_in_groups
from rt_keras.ops.devices import has_accelerator
from rt_keras.ops.slices import over_blocks

# Number of blocks in a node of the tree.
NODE_SIZE = 8
# The names of means and variances of blocks and nodes.
SUMMARIES = ("mean", "variance", "node_mean", "node_variance")
# A block or node has its full weight if its score exceeds the best unselected one by this much.
FADE = 0.05
# Its exp() is 0, and float16 can represent it.
LOG_OF_NOTHING = -1e4
# Numbers of elements that are gathered at once, and of scores of nodes' blocks that are compared at
# once. They fit into the cache of a CPU core. Scores of all blocks come from larger products.
# Accelerators, which need more work at once, take `ON_ACCELERATORS` elements of any of them.
GATHERED_AT_ONCE = 2**17
COMPARED_AT_ONCE = 2**16
SCORED_AT_ONCE = 2**20
ON_ACCELERATORS = 2**25


def select_blocks(query, blocks, reach, counts, num_blocks, num_nodes, deviation_weight):
    """Selects the blocks with the largest scores; see `selected_blocks_attention`.

    Args:
        query: `[batch, key_heads, length, queries, depth]`, scaled; `queries` heads share a key
            head.
        blocks: dictionary of "mean" and "variance" of the keys of each block,
            `[batch, key_heads, blocks, depth]`; with `num_nodes`, of those of each node, see
            `node_summaries`; and optionally of "number", the number of each block in the sequence,
            int `[batch or 1, blocks]`. The numbers in a node are consecutive.
        reach: `Reach` of the queries.
        counts: int `[batch or 1, blocks]`, number of keys in each block.
        num_blocks, num_nodes, deviation_weight: see `selected_blocks_attention`.

    Returns:
        Tuple of the blocks, int `[batch, key_heads, length, queries, chosen]`, the number of keys
        in each, 0 for those that a query may not select, and the bias added to the logits of these
        keys.
    """
    query = tf.stop_gradient(query)
    batch, key_heads, total, _ = sizes(blocks["mean"])
    counts = tf.broadcast_to(counts, [batch, total])
    names = ["mean", "variance"] if num_nodes is None else SUMMARIES
    shared, rows = {name: tf.cast(blocks[name], query.dtype) for name in names}, size(query, 3)
    choose, elements, at_once = _best, rows * key_heads * total, SCORED_AT_ONCE
    if num_nodes is not None:
        shared = _in_nodes(shared, counts)
        choose, elements = _best_of_nodes, rows * key_heads * NODE_SIZE * num_nodes
        at_once = COMPARED_AT_ONCE
    shared["counts"] = counts
    if "number" in blocks:
        shared["number"] = blocks["number"]

    def chosen(part):
        block, score, bias = choose(part, num_blocks, num_nodes, deviation_weight)
        found = tf.gather(part["counts"], block, batch_dims=1)
        return block, tf.where(score > MASKED / 2, found, 0), bias

    bounds = {"before": reach.before, "after": reach.after, "first": reach.first}
    bounds = {name: x[:, None] for name, x in bounds.items() if x is not None}
    per_query = {"query": query, **bounds}
    dtypes = tf.int32, tf.int32, query.dtype
    return over_queries(chosen, per_query, shared, elements, at_once, dtypes)


def over_queries(function, per_query, shared, elements, at_once, dtype):
    """Runs a function on some positions at a time.

    Args:
        function: function of a dictionary of arguments, with any number of positions, that returns
            `[batch, heads, positions, ...]` or a tuple of such tensors.
        per_query: dictionary of arguments `[batch or 1, heads or 1, length, ...]`.
        shared: dictionary of arguments that are passed whole.
        elements: int, number of elements that one position has in memory.
        at_once: int, maximum number of elements at once on a CPU.
        dtype: dtype of the results of the function, or a tuple of dtypes.
    """
    query = per_query["query"]
    batch, length = query.shape[0] or 1, size(query, 2)
    known = isinstance(length, int) and isinstance(elements, int)
    if not known or length == 0:
        return function({**per_query, **{k: x for k, x in shared.items() if x is not None}})
    if has_accelerator():
        at_once = ON_ACCELERATORS
    positions = min(max(at_once // (batch * elements), 1), length)
    chunks = ceil_div(length, positions)
    missing = chunks * positions - length
    per_query = {name: pad_axis(x, 2, 0, missing) for name, x in per_query.items()}
    found = over_blocks(function, per_query, shared, chunks, dtype)
    return tf.nest.map_structure(lambda x: x[:, :, :length], found)


def _best(part, num_blocks, num_nodes, deviation_weight):
    """Returns the best of all blocks, their scores, and the bias of their logits."""
    blocks = _numbers(part, size(part["mean"], 2))
    score = _scores(part["query"], part["mean"], part["variance"], deviation_weight)
    usable = _within_reach(part, blocks) & (part["counts"][:, None, None, None] > 0)
    return _largest(_masked(score, usable), num_blocks)


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
    """Computes the scores of blocks or nodes from the mean and the variance of their keys.

    Args:
        query: `[batch, key_heads, length, queries, depth]`.
        mean, variance: `[batch, key_heads, count, depth]`.
        deviation_weight: float.

    Returns:
        `[batch, key_heads, length, queries, count]`.
    """
    batch, key_heads, *rows, depth = sizes(query)
    flat = tf.reshape(query, [batch, key_heads, -1, depth])
    score = with_deviation(products_with, (mean, variance), flat, deviation_weight)
    return tf.reshape(score, [batch, key_heads, *rows, size(mean, 2)])


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


def node_summaries(mean, variance, counts):
    """Computes mean and variance of the keys of each node, `NODE_SIZE` consecutive blocks.

    Args:
        mean, variance: those of each block, `[batch, key_heads, blocks, depth]`. The number of
            blocks is a multiple of `NODE_SIZE`.
        counts: int `[batch or 1, blocks]`, number of keys in each block.

    Returns:
        A dictionary of "node_mean" and "node_variance", `[batch, key_heads, nodes, depth]`.
    """
    batch, key_heads, total, depth = sizes(mean)
    nodes = total // NODE_SIZE
    weight = tf.reshape(tf.cast(counts, mean.dtype), [size(counts, 0), 1, nodes, NODE_SIZE, 1])
    weight /= tf.maximum(tf.reduce_sum(weight, axis=3, keepdims=True), 1)
    means, spreads = (
        tf.reshape(x, [batch, key_heads, nodes, NODE_SIZE, depth]) for x in (mean, variance)
    )
    node = tf.reduce_sum(means * weight, axis=3)
    spreads += tf.square(means - node[:, :, :, None])
    return {"node_mean": node, "node_variance": tf.reduce_sum(spreads * weight, axis=3)}


def _in_nodes(blocks, counts):
    """Returns the arguments of `_best_of_nodes`.

    Args:
        blocks: dictionary of "mean", "variance", "node_mean" and "node_variance"; see
            `select_blocks`.
        counts: int `[batch, blocks]`.

    Returns:
        A dictionary of "node_mean" and "node_variance"; "means" and "variances", those of the
        blocks of a node, `[batch * key_heads * nodes, NODE_SIZE * depth]`; and "node_counts", int
        `[batch * nodes, NODE_SIZE]`.
    """
    batch, key_heads, total, depth = sizes(blocks["mean"])
    rows = [batch * key_heads * (total // NODE_SIZE), NODE_SIZE * depth]
    return {
        **{name: blocks[name] for name in ("node_mean", "node_variance")},
        "means": tf.reshape(blocks["mean"], rows),
        "variances": tf.reshape(blocks["variance"], rows),
        "node_counts": tf.reshape(counts, [batch * (total // NODE_SIZE), NODE_SIZE]),
    }


def _best_of_nodes(part, num_blocks, num_nodes, deviation_weight):
    """Returns the best blocks of the best nodes, their scores, and the bias of their logits."""
    query, nodes = part["query"], size(part["node_mean"], 2)
    batch, key_heads, *rows, depth = sizes(query)
    score = _scores(query, part["node_mean"], part["node_variance"], deviation_weight)
    counts = tf.reshape(part["node_counts"], [batch, 1, 1, 1, nodes, NODE_SIZE])
    # Windows begin where segments begin, and so where nodes begin.
    first = _numbers(part, nodes * NODE_SIZE)[:, ::NODE_SIZE]
    usable = _within_reach(part, first) & tf.reduce_any(counts > 0, axis=-1)
    node, score, node_bias = _largest(_masked(score, usable), num_nodes)
    of_row = tf.reshape(tf.range(batch), [batch, 1, 1, 1, 1]) * nodes
    usable = tf.gather(part["node_counts"], node + of_row) > 0
    usable &= (score > MASKED / 2)[..., None]
    of_head = tf.reshape(tf.range(batch * key_heads), [batch, key_heads, 1, 1, 1]) * nodes

    def scores(part):
        def products(rows, vectors):
            shape = [batch, key_heads, -1, *blocks[3:], depth]
            return tf.linalg.matvec(tf.reshape(tf.gather(rows, part["row"]), shape), vectors)

        summaries = part["means"], part["variances"]
        return with_deviation(products, summaries, part["query"], deviation_weight)

    blocks = [batch, key_heads, *rows, size(node, 4) * NODE_SIZE]
    score = over_queries(
        scores,
        {"query": query, "row": node + of_head},
        {name: part[name] for name in ("means", "variances")},
        2 * key_heads * rows[1] * blocks[4] * depth,
        GATHERED_AT_ONCE,
        query.dtype,
    )
    score += tf.repeat(node_bias, NODE_SIZE, axis=4)
    score = _masked(score, tf.reshape(usable, blocks))
    place, score, bias = _largest(score, num_blocks)
    node, node_bias = (tf.gather(x, place // NODE_SIZE, batch_dims=4) for x in (node, node_bias))
    return node * NODE_SIZE + place % NODE_SIZE, score, bias + node_bias


def _numbers(part, total):
    """Returns the numbers of the blocks in the sequence, int `[batch or 1, blocks]`."""
    return part["number"] if "number" in part else tf.range(total)[None]


def _within_reach(part, block):
    """Returns a mask of the blocks, int `[batch or 1, blocks]`, that each query may select."""
    block = block[:, None, None, None]
    before, after = (part[name][..., None, None] for name in ("before", "after"))
    usable = block < before
    if "first" in part:
        usable &= block >= part["first"][..., None, None]
    return usable | (block >= after)


def _masked(score, usable):
    return tf.where(usable, score, tf.cast(MASKED, score.dtype))
