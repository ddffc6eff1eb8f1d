"""Attention to the blocks of keys with the highest scores, outside the window of a query."""

from typing import NamedTuple

import tensorflow as tf

from rt_keras.keras_internals import is_training
from rt_keras.ops.attend import accumulation_dtype, attend, without_padding
from rt_keras.ops.blocks import ceil_div, pad_axis, places_of_rows, size, sizes, smaller
from rt_keras.ops.content_blocks.masked import attend_to_masked, no_attention
from rt_keras.ops.content_blocks.order import content_order
from rt_keras.ops.content_blocks.select import (
    GATHERED_AT_ONCE,
    node_summaries,
    over_queries,
    select_blocks,
)
from rt_keras.ops.content_blocks.tiles import attend_in_tiles, pays
from rt_keras.ops.devices import runs_on_cpu_kernels

# Up to this number of keys, a CPU takes less time to multiply a query by all of them by kernels of
# TensorFlow than to gather the selected ones by a program of XLA, whose gradient is slow.
MOST_MASKED_KEYS, MOST_MASKED_KEYS_IN_TRAINING = 2048, 6144


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
    length = size(key, 2)
    places = ceil_div(length, segment_size) * segment_size
    real = not_first(places, num_first_tokens) & (tf.range(places) < length)
    if key_mask is not None:
        real &= pad_axis(tf.cast(key_mask, tf.bool), 1, 0, places - length)
    key, value = (pad_axis(x, 2, 0, places - length) for x in (key, value))
    order = order_of_segments(key, real, block_size, segment_size, by_content)
    counts = counts_of_blocks(real, block_size, segment_size)
    blocks = {"key": in_order(key, order), "value": in_order(value, order)}
    blocks |= summaries(blocks["key"], counts, block_size)
    if num_nodes is not None:
        blocks |= node_summaries(blocks["mean"], blocks["variance"], counts)
    options = counts, num_blocks, num_nodes, deviation_weight, dropout, seed
    bounds = window, block_size, causal, memory_length
    found = _attend_outside_of_windows(query, blocks, bounds, options)
    return found if query_mask is None else without_padding(*found, query_mask)


def _attend_outside_of_windows(query, blocks, bounds, options):
    """Computes attention of the queries that may select a block; the first see none if causal."""
    (window_size, look_back), _, causal, _ = bounds
    length, value = size(query, 2), blocks["value"]
    first = smaller((look_back + 1) * window_size, length) if causal else 0
    rest, own = query[:, :, first:], places_of_rows(0, tf.range(first, length))

    def of_rest():
        return attend_to_best(rest, blocks, reach_of(own, *bounds), *options)

    def of_none():
        return no_attention(rest, value)

    if isinstance(length, int):
        found = of_rest() if first < length else of_none()
    else:
        found = tf.cond(first < length, of_rest, of_none)
    before = no_attention(query[:, :, :first], value)
    return tuple(tf.concat(x, axis=2) for x in zip(before, found))


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


def not_first(places, num_first_tokens):
    """Returns a mask of the places without first tokens, bool `[1, places]`."""
    return (tf.range(places) >= num_first_tokens)[None]


def counts_of_blocks(real, block_size, segment_size):
    """Returns the number of keys in each block. Keys that are not masked come first in a segment.

    Args:
        real: bool `[batch or 1, places]`.
        block_size, segment_size: ints.

    Returns:
        int `[batch or 1, blocks]`.
    """
    segments = tf.reshape(tf.cast(real, tf.int32), [size(real, 0), -1, segment_size])
    return counts_in_segments(tf.reduce_sum(segments, axis=2), block_size, segment_size)


def counts_in_segments(keys, block_size, segment_size):
    """Returns the number of keys in each block, int `[batch or 1, blocks]`.

    Args:
        keys: int `[batch or 1, segments]`, number of keys that are not masked.
        block_size, segment_size: ints.
    """
    batch, segments = sizes(keys)
    counts = keys[..., None] - tf.range(0, segment_size, block_size)
    blocks = segments * (segment_size // block_size)
    return tf.reshape(tf.clip_by_value(counts, 0, block_size), [batch, blocks])


def order_of_segments(key, real, block_size, segment_size, by_content):
    """Returns the key at each place of a segment, `[batch, key_heads, segments, segment_size]`."""
    batch, heads, places, depth = sizes(key)
    segments = places // segment_size
    real = tf.reshape(real, [size(real, 0), 1, segments, segment_size])
    shape = [batch, heads, segments, segment_size]
    if not by_content:
        return tf.broadcast_to(tf.argsort(tf.cast(~real, tf.int32), stable=True), shape)
    key = tf.reshape(key, [*shape, depth])
    return content_order(key, tf.broadcast_to(real, shape), block_size)


def in_order(x, order):
    """Returns `[batch, key_heads, places, ...]` in the order of each segment."""
    in_segments = tf.reshape(x, [*sizes(order), size(x, 3)])
    return tf.reshape(tf.gather(in_segments, order, batch_dims=3), sizes(x))


def summaries(key, counts, block_size):
    """Returns mean and variance of the keys of each block, `[batch, key_heads, blocks, depth]`."""
    batch, heads, places, depth = sizes(key)
    blocks = tf.reshape(key, [batch, heads, places // block_size, block_size, depth])
    blocks = tf.cast(tf.stop_gradient(blocks), accumulation_dtype(key.dtype))
    real = tf.range(block_size) < counts[:, None, :, None]
    weight = tf.cast(real, blocks.dtype)[..., None]
    total = tf.maximum(tf.reduce_sum(weight, axis=3), 1.0)
    mean = tf.reduce_sum(blocks * weight, axis=3) / total
    apart = tf.square(blocks - mean[..., None, :]) * weight
    variance = tf.reduce_sum(apart, axis=3) / total
    return {"mean": tf.cast(mean, key.dtype), "variance": tf.cast(variance, key.dtype)}


def reach_of(own, window, block_size, causal, memory_length=None):
    """Returns the `Reach` of queries.

    Args:
        own: int `[batch or 1, length]`, positions of the queries.
        window: tuple of ints, `block_size` and `look_back` of the local attention.
        block_size: int, number of keys in a block.
        causal: bool.
        memory_length: int or None, see `selected_blocks_attention`.
    """
    window_size, look_back = window
    in_window = window_size // block_size
    own = own // window_size
    before = tf.maximum(own - look_back, 0) * in_window
    after = tf.fill(tf.shape(own), tf.int32.max) if causal else (own + look_back + 1) * in_window
    first = None
    if memory_length is not None:
        first = tf.maximum(before - memory_length // block_size, 0)
    return Reach(before, after, first)


def attend_to_best(
    query, blocks, reach, counts, num_blocks, num_nodes, deviation_weight, dropout, seed
):
    """Computes attention to the best blocks; see `selected_blocks_attention`.

    Args:
        query: `[batch, heads, length, depth]`.
        blocks: dictionary of "key" and "value", of the means and variances of blocks and, with
            `num_nodes`, nodes, see `selected_blocks_cache`; and optionally of "number", int
            `[batch or 1, blocks]`, the number of each block in the sequence. Without it, blocks are
            in order.
        reach: `Reach` of the queries.
        counts: int `[batch or 1, blocks]`, number of keys in each block.
        num_blocks, num_nodes, deviation_weight, dropout, seed: see `selected_blocks_attention`.
    """
    options = counts, num_blocks, num_nodes, deviation_weight, dropout, seed
    if runs_on_cpu_kernels() and query.shape[2] != 1:
        keys, known = size(blocks["key"], 2), isinstance(query.shape[2], int)
        most = MOST_MASKED_KEYS_IN_TRAINING if is_training() else MOST_MASKED_KEYS
        far = known and isinstance(keys, int) and keys > most
        attend_to = _attend_compiled if far else attend_to_masked
        return attend_to(query, blocks, reach, *options)
    batch, heads, length, depth = sizes(query)
    key_heads, total = blocks["key"].shape[1], size(blocks["mean"], 2)
    block_size = size(blocks["key"], 2) // total
    # The heads of a key head are consecutive.
    shape = [batch, key_heads, heads // key_heads, length, depth]
    query = tf.reshape(query * depth**-0.5, shape)
    query = tf.transpose(query, [0, 1, 3, 2, 4])
    chosen, found, bias = select_blocks(
        query, blocks, reach, counts, num_blocks, num_nodes, deviation_weight
    )
    key, value = (
        tf.cast(tf.reshape(x, [batch, key_heads, total, block_size, size(x, 3)]), query.dtype)
        for x in (blocks["key"], blocks["value"])
    )
    attend_chosen = attend_in_tiles if pays(chosen, key) else _attend_gathered
    output, logsumexp = attend_chosen(
        query, key, value, chosen, found, bias=bias, dropout=dropout, seed=seed
    )
    output, logsumexp = tf.transpose(output, [0, 1, 3, 2, 4]), tf.transpose(logsumexp, [0, 1, 3, 2])
    return (
        tf.reshape(output, [batch, heads, length, size(value, 4)]),
        tf.reshape(logsumexp, [batch, heads, length]),
    )


def _attend_compiled(query, blocks, reach, *options):
    """Computes `attend_to_best` by XLA, which gathers the selected blocks of each query.

    The gradient is one program that computes it again: in a program of its own, shapes that the
    forward pass has computed would not be constants.
    """

    @tf.custom_gradient
    def attend_to(query, key, value):
        given = {**blocks, "key": key, "value": value}
        found = _compiled(query, given, reach, *options)
        return found, lambda *upstream: _compiled_gradients(upstream, query, given, reach, *options)

    return attend_to(query, blocks["key"], blocks["value"])


@tf.function(jit_compile=True, autograph=False, reduce_retracing=False)
def _compiled(query, blocks, reach, *options):
    return attend_to_best(query, blocks, reach, *options)


@tf.function(jit_compile=True, autograph=False, reduce_retracing=False)
def _compiled_gradients(upstream, query, blocks, reach, *options):
    learnt = query, blocks["key"], blocks["value"]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(learnt)
        found = attend_to_best(query, blocks, reach, *options)
    return tape.gradient(found, learnt, upstream, unconnected_gradients="zero")


def _attend_gathered(query, key, value, block, seen, *, bias, dropout, seed):
    """Computes what `attend_in_tiles` does, with the keys gathered for each query."""
    batch, key_heads, total, block_size, depth = sizes(key)
    value_depth = size(value, 4)
    # One row per block.
    rows = {
        name: tf.reshape(x, [batch * key_heads * total, -1])
        for name, x in (("keys", key), ("values", value))
    }
    sequence = tf.reshape(tf.range(batch * key_heads), [batch, key_heads, 1, 1, 1])
    shape = [batch, key_heads, -1, size(block, 3), size(block, 4) * block_size]

    def read(part):
        key, value = (tf.gather(part[name], part["row"]) for name in ("keys", "values"))
        allowed = tf.range(block_size) < part["seen"][..., None]
        output, logsumexp = attend(
            part["query"][..., None, :],
            tf.reshape(key, [*shape, depth]),
            tf.reshape(value, [*shape, value_depth]),
            tf.expand_dims(tf.reshape(allowed, shape), 4),
            bias=tf.expand_dims(tf.repeat(part["bias"], block_size, axis=4), 4),
            dropout=dropout,
            seed=part.get("seed"),
        )
        return output[..., 0, :], logsumexp[..., 0]

    return over_queries(
        read,
        {"query": query, "row": block + sequence * total, "seen": seen, "bias": bias},
        {**rows, "seed": seed},
        key_heads * shape[3] * shape[4] * (depth + value_depth),
        GATHERED_AT_ONCE,
        (query.dtype, accumulation_dtype(query.dtype)),
    )
