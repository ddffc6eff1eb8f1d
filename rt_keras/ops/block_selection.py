"""The choice of the blocks of keys that suit a query best."""

import tensorflow as tf

from rt_keras.ops.attend import MASKED
from rt_keras.ops.blocks import ceil_div, pad_axis, size, sizes
from rt_keras.ops.chunks import over_blocks
from rt_keras.ops.largest import indices_of_largest

# Blocks in a node of the tree.
NODE_SIZE = 8
# A block or a node has its whole weight if its score is so far above the best one that is left out.
FADE = 0.25
# exp() of it is 0, and float16 has it.
LOG_OF_NOTHING = -1e4
# Elements that are gathered at once, and scores of the blocks of nodes that are compared: on a CPU,
# what stays in the cache of a core. Scores of all blocks are large products first.
GATHERED_AT_ONCE = 2**17
COMPARED_AT_ONCE = 2**16
SCORED_AT_ONCE = 2**20


def select_blocks(query, blocks, reach, counts, num_blocks, num_nodes, deviation_weight):
    """The blocks with the largest scores, as `selected_blocks_attention` defines them.

    Args:
        query: `[batch, key_heads, length, queries, depth]`, scaled: those that share keys.
        blocks: dictionary of "mean" and "variance" of the keys of each block,
            `[batch, key_heads, blocks, depth]`.
        reach: two int tensors `[batch or 1, length]`: a query may choose the blocks before the
            first number, and not before the second.
        counts: int `[batch or 1, blocks]`, how many keys each block has.
        num_blocks, num_nodes, deviation_weight: see `selected_blocks_attention`.

    Returns:
        The blocks, int `[batch, key_heads, length, queries, chosen]`; how many keys each has, 0 for
        those that a query may not choose; and what is added to the logits of these keys.
    """
    query = tf.stop_gradient(query)
    batch, key_heads, total, _ = sizes(blocks["mean"])
    counts = tf.broadcast_to(counts, [batch, total])
    mean, variance = (tf.cast(blocks[name], query.dtype) for name in ("mean", "variance"))
    shared, rows = {"counts": counts, "mean": mean, "variance": variance}, size(query, 3)
    choose, elements, at_once = _best, rows * key_heads * total, SCORED_AT_ONCE
    if num_nodes is not None:
        shared = {"counts": counts, **_nodes(mean, variance, counts)}
        choose, elements = _best_of_nodes, rows * key_heads * NODE_SIZE * num_nodes
        at_once = COMPARED_AT_ONCE

    def chosen(part):
        block, score, bias = choose(part, num_blocks, num_nodes, deviation_weight)
        found = tf.gather(part["counts"], block, batch_dims=1)
        return block, tf.where(score > MASKED / 2, found, 0), bias

    before, after = (x[:, None] for x in reach)
    per_query = {"query": query, "before": before, "after": after}
    dtypes = tf.int32, tf.int32, query.dtype
    return over_queries(chosen, per_query, shared, elements, at_once, dtypes)


def over_queries(function, per_query, shared, elements, at_once, dtype):
    """Runs a function over some positions at a time.

    Args:
        function: takes a dictionary of arguments, with any number of positions, and returns
            `[batch, heads, positions, ...]`, or a tuple of such tensors.
        per_query: dictionary of arguments `[batch or 1, heads or 1, length, ...]`.
        shared: dictionary of arguments that all positions see whole.
        elements: int, how many elements one position has in memory.
        at_once: int, how many elements there should be at once.
        dtype: dtype of what the function returns, or a tuple of dtypes.
    """
    query = per_query["query"]
    batch, length = query.shape[0] or 1, size(query, 2)
    if not isinstance(length, int):
        return function({**per_query, **{k: x for k, x in shared.items() if x is not None}})
    positions = min(max(at_once // (batch * elements), 1), length)
    chunks = ceil_div(length, positions)
    missing = chunks * positions - length
    per_query = {name: pad_axis(x, 2, 0, missing) for name, x in per_query.items()}
    found = over_blocks(function, per_query, shared, chunks, dtype)
    return tf.nest.map_structure(lambda x: x[:, :, :length], found)


def _best(part, num_blocks, num_nodes, deviation_weight):
    """The best of all blocks, their scores, and what is added to their logits."""
    blocks = tf.range(size(part["mean"], 2))
    score = _scores(part["query"], part["mean"], part["variance"], deviation_weight)
    usable = _within_reach(part, blocks) & (part["counts"][:, None, None, None] > 0)
    return _largest(_masked(score, usable), num_blocks)


def _largest(score, count):
    """The largest of scores `[..., length]`, of which those near the next largest fade.

    Returns:
        Their indices, int `[..., count]`, at most `length`; their scores; and the logarithms of
        their weights, 0 for those that are not near the next largest.
    """
    place, next_largest = indices_of_largest(score, min(count, size(score, -1)))
    score = tf.gather(score, place, batch_dims=score.shape.rank - 1)
    weight = tf.clip_by_value((score - next_largest[..., None]) / FADE, 0, 1)
    return place, score, tf.maximum(tf.math.log(weight), LOG_OF_NOTHING)


def _scores(query, mean, variance, deviation_weight):
    """The scores of blocks, or of nodes, by the mean and the variance of their keys.

    Args:
        query: `[batch, key_heads, length, queries, depth]`.
        mean, variance: `[batch, key_heads, count, depth]`.
        deviation_weight: float.

    Returns:
        `[batch, key_heads, length, queries, count]`.
    """
    batch, key_heads, *rows, depth = sizes(query)
    flat = tf.reshape(query, [batch, key_heads, -1, depth])
    score = _with_deviation(
        lambda summary, vectors: tf.matmul(vectors, summary, transpose_b=True),
        (mean, variance),
        flat,
        deviation_weight,
    )
    return tf.reshape(score, [batch, key_heads, *rows, size(mean, 2)])


def _with_deviation(products, summaries, query, deviation_weight):
    """Scores of queries by the means and the variances, and a function that multiplies them."""
    mean, variance = summaries
    score = products(mean, query)
    if deviation_weight:
        spread = products(variance, tf.square(query))
        score += deviation_weight * tf.sqrt(tf.maximum(spread, 0))
    return score


def _nodes(mean, variance, counts):
    """The nodes of the tree, each of which has so many consecutive blocks.

    Args:
        mean, variance: `[batch, key_heads, blocks, depth]`.
        counts: int `[batch, blocks]`.

    Returns:
        A dictionary of "node" and "node_variance", mean and variance of their keys,
        `[batch, key_heads, nodes, depth]`; of what their blocks have, "means" and "variances",
        `[batch * key_heads * nodes, NODE_SIZE * depth]`; and "node_counts", int
        `[batch * nodes, NODE_SIZE]`.
    """
    batch, key_heads, total, depth = sizes(mean)
    nodes = total // NODE_SIZE
    counts = tf.reshape(counts, [batch, 1, nodes, NODE_SIZE, 1])
    weight = tf.cast(counts, mean.dtype)
    weight /= tf.maximum(tf.reduce_sum(weight, axis=3, keepdims=True), 1)
    means, spreads = (
        tf.reshape(x, [batch, key_heads, nodes, NODE_SIZE, depth]) for x in (mean, variance)
    )
    node = tf.reduce_sum(means * weight, axis=3)
    spreads += tf.square(means - node[:, :, :, None])
    return {
        "node": node,
        "node_variance": tf.reduce_sum(spreads * weight, axis=3),
        "means": tf.reshape(mean, [batch * key_heads * nodes, NODE_SIZE * depth]),
        "variances": tf.reshape(variance, [batch * key_heads * nodes, NODE_SIZE * depth]),
        "node_counts": tf.reshape(counts, [batch * nodes, NODE_SIZE]),
    }


def _best_of_nodes(part, num_blocks, num_nodes, deviation_weight):
    """The best blocks of the best nodes, their scores, and what is added to their logits."""
    query, nodes = part["query"], size(part["node"], 2)
    batch, key_heads, *rows, depth = sizes(query)
    score = _scores(query, part["node"], part["node_variance"], deviation_weight)
    counts = tf.reshape(part["node_counts"], [batch, 1, 1, 1, nodes, NODE_SIZE])
    # Windows begin where segments do, and so where nodes do.
    usable = _within_reach(part, tf.range(nodes) * NODE_SIZE) & tf.reduce_any(counts > 0, axis=-1)
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
        return _with_deviation(products, summaries, part["query"], deviation_weight)

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


def _within_reach(part, block):
    """Which blocks, int `[blocks]`, each query may choose."""
    before, after = (part[name][..., None, None] for name in ("before", "after"))
    return (block < before) | (block >= after)


def _masked(score, usable):
    return tf.where(usable, score, tf.cast(MASKED, score.dtype))
