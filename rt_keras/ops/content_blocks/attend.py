"""Attention to the blocks of keys with the highest scores, outside the window of a query."""

import math

import numpy as np
import tensorflow as tf

from rt_keras.keras_internals import is_training
from rt_keras.ops.attend import accumulation_dtype, attend, no_attention, without_padding
from rt_keras.ops.blocks import (
    ceil_div,
    pad_axis,
    places_of_rows,
    real_positions,
    size,
    sizes,
    smaller,
)
from rt_keras.ops.content_blocks.masked import attend_to_masked
from rt_keras.ops.content_blocks.order import content_order, naive_content_order
from rt_keras.ops.content_blocks.select import (
    FADE,
    GATHERED_AT_ONCE,
    LOG_OF_NOTHING,
    NODE_SIZE,
    BlockOptions,
    Blocks,
    Reach,
    over_queries,
    select_blocks,
)
from rt_keras.ops.content_blocks.tiles import attend_by_tiles, tiling_is_faster
from rt_keras.ops.devices import runs_on_cpu_kernels
from rt_keras.ops.naive import naive_logits, naive_mask, naive_softmax
from rt_keras.ops.slices import gradients_of

# Up to this number of keys, a CPU takes less time to multiply a query by all of them by kernels of
# TensorFlow than to gather the selected ones by a program of XLA, whose gradient is slow.
MOST_MASKED_KEYS, MOST_MASKED_KEYS_IN_TRAINING = 2048, 6144


def naive_selected_blocks_attention(
    query,
    key,
    value,
    *,
    causal=False,
    query_mask=None,
    key_mask=None,
    selected_by=None,
    **options,
):
    """Computes `selected_blocks_attention` by its equation, in NumPy, for any `BlockOptions`.

    `selected_by` is a pair of the queries and keys that select blocks: without a gradient through
    them, they may be others.
    """
    key, value = (np.repeat(x, query.shape[1] // x.shape[1], axis=1) for x in (key, value))
    queries, keys = selected_by or (query, key)
    keys = np.repeat(keys, query.shape[1] // keys.shape[1], axis=1)
    batch, heads, length, depth = query.shape
    options = BlockOptions(**options)
    block_size, window = options.block_size, options.window
    per_window, bias = window[0] // block_size, np.full([batch, heads, length, length], -np.inf)
    for b, h in np.ndindex(batch, heads):
        real = np.arange(length) >= options.num_first_tokens
        real &= True if key_mask is None else key_mask[b]
        blocks = _naive_blocks(keys[b, h], real, options)

        def summary(x, members, keys=keys[b, h]):
            mean, variance = keys[members].mean(axis=0), keys[members].var(axis=0)
            return x @ mean + options.deviation_weight * np.sqrt(x**2 @ variance)

        for i in range(length):
            x, number = queries[b, h, i] / math.sqrt(depth), i // window[0]
            before, after = ((number + n) * per_window for n in (-window[1], window[1] + 1))
            first = before - (options.memory_length or np.inf) / block_size
            allowed = [g for g in range(len(blocks)) if blocks[g]]
            allowed = [g for g in allowed if first <= g < before or (not causal and g >= after)]
            nodes = {g // NODE_SIZE: 0.0 for g in allowed}
            if options.num_nodes is not None:
                members = {n: blocks[n * NODE_SIZE : (n + 1) * NODE_SIZE] for n in nodes}
                scores = {n: summary(x, sum(members[n], [])) for n in nodes}
                nodes = _naive_weights(scores, options.num_nodes)
            allowed = [g for g in allowed if g // NODE_SIZE in nodes]
            scores = {g: summary(x, blocks[g]) + nodes[g // NODE_SIZE] for g in allowed}
            for g, weight in _naive_weights(scores, options.num_blocks).items():
                bias[b, h, i, blocks[g]] = weight + nodes[g // NODE_SIZE]
    visible = (bias > -np.inf) & naive_mask(length, length, query_mask=query_mask)
    return naive_softmax(naive_logits(query, key) + bias, visible) @ value


def _naive_blocks(key, real, options):
    """Returns the positions of the keys in each block of each segment."""
    blocks, block_size, segment_size = [], options.block_size, options.segment_size
    for start in range(0, len(key), segment_size):
        places = np.arange(start, start + segment_size)
        if options.by_content:
            places = naive_content_order(key, real, places, block_size)
        # Those that are not real come last, and belong to no block.
        places = [j for j in places if j < len(key) and real[j]]
        blocks += [places[g : g + block_size] for g in range(0, segment_size, block_size)]
    return blocks


def _naive_weights(scores, count):
    """Returns the logs of the weights of the largest scores, which fade close to the next."""
    ordered = sorted(scores, key=lambda g: -scores[g])
    next_largest = scores[ordered[count]] if count < len(ordered) else -np.inf
    weights = {g: np.clip((scores[g] - next_largest) / FADE, 0, 1) for g in ordered[:count]}
    return {g: np.log(weight) if weight else LOG_OF_NOTHING for g, weight in weights.items()}


def selected_blocks_attention(
    query,
    key,
    value,
    *,
    block_size,
    num_blocks,
    segment_size,
    window,
    by_content=True,
    deviation_weight=1.0,
    num_nodes=None,
    num_first_tokens=0,
    memory_length=None,
    causal=False,
    query_mask=None,
    key_mask=None,
    dropout=0.0,
    seed=None,
):
    """Computes attention of each query to the blocks of keys with the highest scores.

    ```
    score_ig = query_i · mean_g + deviation_weight · sqrt(query_i² · variance_g)
    weight_ig = min(1, (score_ig - next_i) / FADE)
    output_i = sum_j softmax_j(query_i · key_j + log weight_ig) value_j
    ```

    over the keys j of the `num_blocks` blocks g with the largest scores, with queries scaled by
    `1 / sqrt(depth)`. `next_i` is the largest score of the other blocks. A block whose score is
    close to it fades, so rounding errors in scores hardly change the output. No gradient passes
    through scores and weights.

    When a segment ends, its keys are divided into blocks, by content or in their order, so blocks
    do not depend on later keys. A query may select blocks of the segments outside its window.
    `merge` joins this with attention to the window.

    With `num_nodes`, a query first scores nodes of 8 consecutive blocks, by the same equation, and
    then only the blocks of the best nodes: n / (8 · `block_size`) + 8 · `num_nodes` scores per
    query instead of n / `block_size`. Nodes fade likewise: the log of a node's weight is added to
    the scores and to the log weights of its blocks.

    Args:
        query: `[batch, heads, length, depth]`.
        key: `[batch, key_heads, length, depth]`. Each key head serves `heads / key_heads`
            consecutive heads, which select different blocks.
        value: `[batch, key_heads, length, value_depth]`.
        block_size: int, number of keys in a block.
        num_blocks: int, number of blocks that a query attends to.
        segment_size: int, number of keys in a segment, `block_size` times a power of 2.
        window: tuple of two ints, `block_size` and `look_back` of the local attention whose keys
            are left out. The block size must be a multiple of `segment_size`.
        by_content: bool, whether a block contains similar keys, see `content_order`, instead of
            neighboring ones. Defaults to True.
        deviation_weight: float, weight of the standard deviation. Defaults to 1.
        num_nodes: int, number of nodes that are searched. Defaults to None, to score all blocks.
        num_first_tokens: int, number of first tokens, which are left out. Defaults to 0.
        memory_length: int, number of positions before its window from which a query may select
            blocks, a multiple of `segment_size`. Requires `causal`. Defaults to None, for all
            positions.
        causal: bool, whether query i sees key j only if j <= i. Defaults to False.
        query_mask: bool `[batch, length]`, False for padding, whose output is 0. Defaults to None,
            for no padding.
        key_mask: bool `[batch, length]`, False for padding, which no query sees. Defaults to None,
            for no padding.
        dropout: float, share of the attention weights set to 0. Defaults to 0.
        seed: int `[2]`, needed if `dropout` is above 0. Defaults to None.

    Returns:
        Tuple of `[batch, heads, length, value_depth]` and the logsumexp of the logits,
        `[batch, heads, length]`. The output of a query that sees no key is 0.

    Raises:
        ValueError: if `memory_length` is not a positive multiple of `segment_size`, or is set while
            `causal` is False.

    Source: ours. Blocks of neighboring keys, selected by their means: Lu et al. 2025, MoBA: Mixture
    of Block Attention for Long-Context LLMs, section 2.2.

    >>> x = tf.random.normal([1, 2, 40, 4])
    >>> options = {"block_size": 2, "num_blocks": 3, "segment_size": 8, "window": (8, 1)}
    >>> selected_blocks_attention(x, x, x, **options, causal=True)[0].shape
    TensorShape([1, 2, 40, 4])
    """
    check_memory_length(memory_length, segment_size)
    if memory_length is not None and not causal:
        raise ValueError(
            f"memory_length requires causal=True. Received: memory_length={memory_length}, "
            f"causal={causal}"
        )
    query, key, value = (tf.convert_to_tensor(x) for x in (query, key, value))
    length = size(key, 2)
    places = ceil_div(length, segment_size) * segment_size
    real = pad_axis(real_positions(length, key_mask), 1, 0, places - length)
    real &= are_not_first(places, num_first_tokens)
    key, value = (pad_axis(x, 2, 0, places - length) for x in (key, value))
    options = BlockOptions(
        *(block_size, num_blocks, segment_size, window, by_content),
        *(deviation_weight, num_nodes, num_first_tokens, memory_length),
    )
    order = order_of_segments(key, real, options)
    key, value = in_order(key, order), in_order(value, order)
    counts = counts_of_blocks(real, options)
    summaries = summarize(key, counts, block_size, has_nodes=num_nodes is not None)
    blocks = Blocks(key, value, *summaries, counts)

    def attend_rest(rest):
        positions = places_of_rows(0, tf.range(first, size(query, 2)))
        reach = reach_of(positions, options, causal)
        return attend_to_best(rest, blocks, reach, options, dropout, seed)

    # The first queries see no block if causal.
    first = smaller((window[1] + 1) * window[0], size(query, 2)) if causal else 0
    return without_padding(*_attend_from(first, query, value, attend_rest), query_mask)


def _attend_from(first, query, value, attend_rest):
    """Computes attention of the queries from `first` on, if there are any. Others see no keys."""
    length, rest = size(query, 2), query[:, :, first:]

    def attend_to_none():
        return no_attention(rest, value)

    if isinstance(length, int):
        attended = attend_rest(rest) if first < length else attend_to_none()
    else:
        attended = tf.cond(first < length, lambda: attend_rest(rest), attend_to_none)
    attended = zip(no_attention(query[:, :, :first], value), attended)
    return tuple(tf.concat(x, axis=2) for x in attended)


def check_memory_length(memory_length, segment_size):
    """Raises a ValueError if `memory_length` is not None or a positive multiple of a segment.

    >>> check_memory_length(12, segment_size=8)
    Traceback (most recent call last):
    ...
    ValueError: memory_length must be None or a positive multiple of segment_size. Received: \
memory_length=12, segment_size=8
    """
    if memory_length is not None and (memory_length < 1 or memory_length % segment_size):
        raise ValueError(
            "memory_length must be None or a positive multiple of segment_size. Received: "
            f"memory_length={memory_length}, segment_size={segment_size}"
        )


def are_not_first(places, num_first_tokens):
    """Returns a mask of the places without first tokens, bool `[1, places]`."""
    return (tf.range(places) >= num_first_tokens)[None]


def counts_of_blocks(real, options):
    """Returns the number of keys in each block, int `[batch or 1, blocks]`.

    Keys that `real`, bool `[batch or 1, places]`, does not mask come first in a segment.
    """
    segments = tf.reshape(tf.cast(real, tf.int32), [size(real, 0), -1, options.segment_size])
    return counts_in_segments(tf.reduce_sum(segments, axis=2), options)


def counts_in_segments(keys, options):
    """Returns the number of keys in each block, int `[batch or 1, blocks]`.

    `keys`, int `[batch or 1, segments]`, are the numbers of keys that are not masked.
    """
    batch, segments = sizes(keys)
    counts = keys[..., None] - tf.range(0, options.segment_size, options.block_size)
    blocks = segments * (options.segment_size // options.block_size)
    return tf.reshape(tf.clip_by_value(counts, 0, options.block_size), [batch, blocks])


def order_of_segments(key, real, options):
    """Returns the key at each place of a segment, `[batch, key_heads, segments, segment_size]`."""
    batch, heads, places, depth = sizes(key)
    segment_size = options.segment_size
    segments = places // segment_size
    real = tf.reshape(real, [size(real, 0), 1, segments, segment_size])
    shape = [batch, heads, segments, segment_size]
    if not options.by_content:
        return tf.broadcast_to(tf.argsort(tf.cast(~real, tf.int32), stable=True), shape)
    key = tf.reshape(key, [*shape, depth])
    return content_order(key, tf.broadcast_to(real, shape), options.block_size)


def in_order(x, order):
    """Returns `[batch, key_heads, places, ...]` in the order of each segment."""
    in_segments = tf.reshape(x, [*sizes(order), size(x, 3)])
    return tf.reshape(tf.gather(in_segments, order, batch_dims=3), sizes(x))


def summarize(key, counts, block_size, has_nodes):
    """Returns mean and variance of the keys of each block, and of each node or None.

    Args:
        key: `[batch, key_heads, places, depth]`, in the order of blocks.
        counts: int `[batch or 1, blocks]`, number of keys in each block, the first ones.
        block_size: int.
        has_nodes: bool; if True, the number of blocks is a multiple of `NODE_SIZE`.

    Returns:
        Tuple of mean, variance, node mean and node variance, `[batch, key_heads, count, depth]`.
    """
    batch, heads, places, depth = sizes(key)
    # [batch, key_heads, blocks, block_size, depth]
    blocks = tf.reshape(key, [batch, heads, places // block_size, block_size, depth])
    blocks = tf.cast(tf.stop_gradient(blocks), accumulation_dtype(key.dtype))
    real = tf.range(block_size) < counts[:, None, :, None]
    weight = tf.cast(real, blocks.dtype)[..., None]
    total = tf.maximum(tf.reduce_sum(weight, axis=3), 1.0)
    mean = tf.reduce_sum(blocks * weight, axis=3) / total
    apart = tf.square(blocks - mean[..., None, :]) * weight
    variance = tf.reduce_sum(apart, axis=3) / total
    mean, variance = tf.cast(mean, key.dtype), tf.cast(variance, key.dtype)
    return mean, variance, *(_of_nodes(mean, variance, counts) if has_nodes else (None, None))


def _of_nodes(mean, variance, counts):
    """Returns mean and variance of the keys of each node, `NODE_SIZE` consecutive blocks."""
    batch, key_heads, total, depth = sizes(mean)
    nodes = total // NODE_SIZE
    weight = tf.reshape(tf.cast(counts, mean.dtype), [size(counts, 0), 1, nodes, NODE_SIZE, 1])
    weight /= tf.maximum(tf.reduce_sum(weight, axis=3, keepdims=True), 1)
    means, spreads = (
        tf.reshape(x, [batch, key_heads, nodes, NODE_SIZE, depth]) for x in (mean, variance)
    )
    node = tf.reduce_sum(means * weight, axis=3)
    spreads += tf.square(means - node[:, :, :, None])
    return node, tf.reduce_sum(spreads * weight, axis=3)


def reach_of(positions, options, causal):
    """Returns the `Reach` of queries at positions `[batch or 1, length]`."""
    (window_size, look_back), block_size = options.window, options.block_size
    in_window = window_size // block_size
    number = positions // window_size
    before = tf.maximum(number - look_back, 0) * in_window
    if causal:
        after = tf.fill(tf.shape(number), tf.int32.max)
    else:
        after = (number + look_back + 1) * in_window
    first = None
    if options.memory_length is not None:
        first = tf.maximum(before - options.memory_length // block_size, 0)
    return Reach(before, after, first)


def attend_to_best(query, blocks, reach, options, dropout, seed):
    """Computes attention to the best blocks; see `selected_blocks_attention`.

    Args:
        query: `[batch, heads, length, depth]`.
        blocks, reach, options: `Blocks`, `Reach` of the queries, and `BlockOptions`.
        dropout, seed: see `selected_blocks_attention`.
    """
    if runs_on_cpu_kernels() and query.shape[2] != 1:
        keys, known = size(blocks.key, 2), isinstance(query.shape[2], int)
        most = MOST_MASKED_KEYS_IN_TRAINING if is_training() else MOST_MASKED_KEYS
        far = known and isinstance(keys, int) and keys > most
        attend_to = _attend_compiled if far else attend_to_masked
        return attend_to(query, blocks, reach, options, dropout, seed)
    batch, heads, length, depth = sizes(query)
    key_heads, total = blocks.key.shape[1], size(blocks.mean, 2)
    block_size = size(blocks.key, 2) // total
    # The heads of a key head are consecutive.
    query = tf.reshape(query * depth**-0.5, [batch, key_heads, heads // key_heads, length, depth])
    query = tf.transpose(query, [0, 1, 3, 2, 4])  # [batch, key_heads, length, queries, depth]
    # Each [batch, key_heads, length, queries, selected]
    block, keys, bias = select_blocks(query, blocks, reach, options)
    key, value = (
        tf.cast(tf.reshape(x, [batch, key_heads, total, block_size, size(x, 3)]), query.dtype)
        for x in (blocks.key, blocks.value)
    )
    attend_selected = attend_by_tiles if tiling_is_faster(block, key) else _attend_gathered
    output, logsumexp = attend_selected(query, key, value, block, keys, bias, dropout, seed)
    output, logsumexp = tf.transpose(output, [0, 1, 3, 2, 4]), tf.transpose(logsumexp, [0, 1, 3, 2])
    output = tf.reshape(output, [batch, heads, length, size(value, 4)])
    return output, tf.reshape(logsumexp, [batch, heads, length])


def _attend_compiled(query, blocks, *options):
    """Computes `attend_to_best` by XLA, which gathers the selected blocks of each query.

    The gradient is one program that computes it again: in a program of its own, shapes that the
    forward pass has computed would not be constants.
    """

    @tf.custom_gradient
    def attend_to(*learnt):
        attended = _compiled(learnt, blocks, *options)
        return attended, lambda *upstream: _compiled_gradients(upstream, learnt, blocks, *options)

    return attend_to(query, blocks.key, blocks.value)


@tf.function(jit_compile=True, autograph=False, reduce_retracing=False)
def _compiled(learnt, blocks, *options):
    query, key, value = learnt
    return attend_to_best(query, blocks._replace(key=key, value=value), *options)


@tf.function(jit_compile=True, autograph=False, reduce_retracing=False)
def _compiled_gradients(upstream, learnt, blocks, *options):
    def attend_to(query, key, value):
        return attend_to_best(query, blocks._replace(key=key, value=value), *options)

    return gradients_of(attend_to, learnt, upstream)


def _attend_gathered(query, key, value, block, keys, bias, dropout, seed):
    """Computes what `attend_by_tiles` does, with the keys gathered for each query."""
    batch, key_heads, total, block_size, depth = sizes(key)
    value_depth = size(value, 4)
    sequence = tf.reshape(tf.range(batch * key_heads), [batch, key_heads, 1, 1, 1])
    shape = [batch, key_heads, -1, size(block, 3), size(block, 4) * block_size]

    def read(part):
        # [batch, key_heads, positions, queries, selected * block_size, ...]
        key = tf.reshape(tf.gather(part["keys"], part["row"]), [*shape, depth])
        value = tf.reshape(tf.gather(part["values"], part["row"]), [*shape, value_depth])
        allowed = tf.range(block_size) < part["count"][..., None]
        output, logsumexp = attend(
            part["query"][..., None, :],
            key,
            value,
            tf.expand_dims(tf.reshape(allowed, shape), 4),
            bias=tf.expand_dims(tf.repeat(part["bias"], block_size, axis=4), 4),
            dropout=dropout,
            seed=part.get("seed"),
        )
        return output[..., 0, :], logsumexp[..., 0]

    # One row per block.
    rows = {
        "keys": tf.reshape(key, [batch * key_heads * total, -1]),
        "values": tf.reshape(value, [batch * key_heads * total, -1]),
    }
    return over_queries(
        read,
        {"query": query, "row": block + sequence * total, "count": keys, "bias": bias},
        {**rows, "seed": seed},
        key_heads * shape[3] * shape[4] * (depth + value_depth),
        GATHERED_AT_ONCE,
        (query.dtype, accumulation_dtype(query.dtype)),
    )
