"""Attention to a window and to a compressed memory of the blocks before it."""

from typing import NamedTuple

import tensorflow as tf

from rt_keras.ops.attend import attend, merge_pair
from rt_keras.ops.blocks import (
    ceil_div,
    join_blocks,
    overlapping_blocks,
    pad_axis,
    places_of_rows,
    size,
    sizes,
    split_blocks,
)
from rt_keras.ops.local import local_attention
from rt_keras.ops.relative import window_bias

COMPRESSIONS = ("mean", "max", "conv", "most_used")


def compressive_attention(
    query, key, value, *, query_mask=None, key_mask=None, dropout=0.0, seed=None, **memory
):
    """Causal attention to a local window and, under the same softmax, to a compressed memory.

    With W(i) the window of query i in `local_attention`, and M(i) the last `compressed_length`
    entries of the blocks before W(i), each of which has block_size / compression_rate entries:

    ```
    output_i = sum_j softmax_j(logit_ij) value_j    over j in W(i) and M(i)
    logit_ij = query_i · (key_j + r_(i - j)) / sqrt(depth)    for j in W(i)
    logit_ij = query_i · (key_j + m_s) / sqrt(depth)          for the entry j at place s of M(i)
    ```

    With c the `compression_rate`, the entries of a block are, for keys and values alike:

    - "mean", "max": the elementwise mean or maximum of every c positions;
    - "conv": `sum_s kernel_s x_s` of every c positions, a convolution of stride c;
    - "most_used": the block_size / c positions with the most attention from the queries that had
      the block in their window, in the order of the sequence.

    No gradient passes through the entries.

    Args:
        query: `[batch, heads, length, depth]`.
        key: `[batch, heads, length, depth]`.
        value: `[batch, heads, length, value_depth]`.
        query_mask: bool `[batch, length]`, False for padding, whose output is 0; or None.
        key_mask: bool `[batch, length]`, False for padding. No query sees padding, nor the entries
            that include it; with "most_used", nor any entry of its block. None for no padding.
        dropout: float, share of the attention weights set to 0. Defaults to 0.
        seed: int `[2]`, needed if `dropout` is above 0.
        **memory: the fields of `Memory`:

            - `block_size`: int, positions in a block, a multiple of `compression_rate`.
            - `compressed_length`: int, number of entries that a query sees, a multiple of the
              number of entries of a block.
            - `compression_rate`: int c, positions per entry.
            - `look_back`: int, number of blocks before its own in a query's window. Defaults to 1.
            - `compression`: one of `COMPRESSIONS`. Defaults to "mean".
            - `kernels`: with "conv", dictionary of "key", `[heads, c, depth, depth]`, and "value",
              `[heads, c, value_depth, value_depth]`; else None.
            - `relative_embeddings`: `[heads, 2 m + 1, depth]`, r above; or None.
            - `memory_embeddings`: `[heads, compressed_length, depth]`, m above; or None.

    Returns:
        `[batch, heads, length, value_depth]`.

    Source: Rae et al. 2020, Compressive Transformers for Long-Range Sequence Modelling, section 3.
    Here memories consist of whole blocks, so that the length of chunks makes no difference, and
    each head's keys and values are compressed instead of the vectors that they are projections of.

    >>> x = tf.random.normal([1, 2, 40, 4])
    >>> compressive_attention(
    ...     x, x, x, block_size=8, compressed_length=4, compression_rate=4
    ... ).shape
    TensorShape([1, 2, 40, 4])
    """
    query, key, value = (tf.convert_to_tensor(x) for x in (query, key, value))
    length = size(query, 2)
    memory = Memory(**memory)
    real = tf.ones([1, length], tf.bool) if key_mask is None else tf.cast(key_mask, tf.bool)
    batch, heads = size(query, 0), query.shape[1]
    kept = {
        name: tf.zeros([batch, heads, memory.compressed_length, x.shape[3]], x.dtype)
        for name, x in (("key", key), ("value", value))
    }
    kept["real"] = tf.zeros([batch, memory.compressed_length], tf.bool)
    given = {"query": query, "key": key, "value": value, "real": real, "usage": None}
    if memory.compression == "most_used":
        given["usage"] = tf.zeros([batch, heads, length, 1], query.dtype)
    output, _, _ = attend_to_memory(given, kept, memory, dropout=dropout, seed=seed)
    if query_mask is not None:
        real = tf.cast(query_mask, tf.bool)[:, None, :, None]
        output = tf.where(real, output, tf.zeros_like(output))
    return output


def reconstruction_loss(query, key, value, key_mask, memory):
    """Computes the loss that trains the convolutions: the error of attention to compressed blocks.

    ```
    loss = mean of (attention(query_i, block) - attention(query_i, entries of the block))²
    ```

    The mean is over all dimensions of the outputs, for the queries of each block, which attend to
    the block before it. Pairs of blocks with padding are left out. Only the kernels get gradients.

    Args:
        query, key, value: `[batch, heads, length, ...]`.
        key_mask: bool `[batch, length]`, False for padding; or None.
        memory: a `Memory` with compression "conv".

    Returns:
        A scalar, 0 if there is no pair of blocks.

    Source: Rae et al. 2020, section 3.1, attention-reconstruction loss.
    """
    query, key, value = (tf.stop_gradient(x) for x in (query, key, value))
    length, block_size = size(query, 2), memory.block_size
    count = length // block_size
    whole = count * block_size
    real = tf.ones([1, length], tf.bool) if key_mask is None else tf.cast(key_mask, tf.bool)
    real = tf.reduce_all(tf.reshape(real[:, :whole], [size(real, 0), 1, count, block_size]), axis=3)
    # Pairs of consecutive blocks without padding.
    both = tf.cast((real[:, :, :-1] & real[:, :, 1:])[..., None, None], query.dtype)
    query, key, value = (
        split_blocks(x[:, :, :whole], count, block_size) for x in (query, key, value)
    )
    query = query[:, :, 1:] * query.shape[4] ** -0.5
    key, value = key[:, :, :-1], value[:, :, :-1]
    exact, _ = attend(query, key, value, True)
    key, value = (
        _convolved(x, memory.kernels[name], memory.compression_rate)
        for name, x in (("key", key), ("value", value))
    )
    lossy, _ = attend(query, key, value, True)
    error = tf.reduce_sum(both * tf.square(exact - lossy))
    entries = tf.reduce_sum(both * tf.ones_like(exact))
    return error / tf.maximum(entries, 1)


class Memory(NamedTuple):
    """Options of a window and a memory; see `compressive_attention` for the fields."""

    block_size: int
    compressed_length: int
    compression_rate: int
    look_back: int = 1
    compression: str = "mean"
    kernels: dict | None = None
    relative_embeddings: tf.Tensor | None = None
    memory_embeddings: tf.Tensor | None = None

    @property
    def entries(self):
        """Number of entries of a block."""
        return self.block_size // self.compression_rate

    @property
    def blocks(self):
        """Number of compressed blocks that a query sees."""
        return self.compressed_length // self.entries


def attend_to_memory(given, kept, memory, *, first_query=0, dropout=0.0, seed=None):
    """Computes the attention of a sequence that starts at the beginning of a block.

    Args:
        given: dictionary of "query", "key" and "value", `[batch, heads, length, ...]`; "real",
            bool `[batch or 1, length]`, False for padding; and "usage",
            `[batch, heads, length, 1]`, the attention that each position received from earlier
            queries, or None.
        kept: dictionary of "key", "value" and "real", the entries of the blocks before the
            sequence.
        memory: a `Memory`.
        first_query: int scalar or `[batch]`, the first query whose attention counts for
            "most_used". Defaults to 0.
        dropout, seed: see `compressive_attention`.

    Returns:
        The output; the entries, starting with those of `kept`; and the usage.
    """
    query, key, value, real = (given[name] for name in ("query", "key", "value", "real"))
    block_size, look_back = memory.block_size, memory.look_back
    seeds = [None, None] if seed is None else tf.unstack(tf.random.split(seed, 2))
    local, of_local = local_attention(
        query,
        key,
        value,
        block_size=block_size,
        look_back=look_back,
        causal=True,
        key_mask=real,
        relative_embeddings=memory.relative_embeddings,
        dropout=dropout,
        seed=seeds[0],
        return_logsumexp=True,
    )
    length = size(query, 2)
    num_blocks = ceil_div(length, block_size)
    usage = given["usage"]
    if usage is not None:
        counted = real & (tf.range(length) >= places_of_rows(first_query, 0))
        usage += _usage(query, key, real, counted, of_local, memory)
    new = compressed(key, value, real, usage, memory)
    entries = {
        "key": tf.concat([tf.cast(kept["key"], key.dtype), new["key"]], axis=2),
        "value": tf.concat([tf.cast(kept["value"], value.dtype), new["value"]], axis=2),
    }
    of_rows = tf.broadcast_to(new["real"], [size(query, 0), size(new["real"], 1)])
    entries["real"] = tf.concat([kept["real"], of_rows], axis=1)

    def windows(x):
        # The entries of the last blocks are for later queries.
        count = (num_blocks + memory.blocks - 1) * memory.entries
        x = pad_axis(x, 2, look_back * memory.entries, 0)[:, :, :count]
        return overlapping_blocks(x, num_blocks, memory.entries, memory.blocks, 0)

    remembered = windows(entries["key"])
    if memory.memory_embeddings is not None:
        remembered += tf.cast(memory.memory_embeddings, key.dtype)[:, None]
    seen = windows(entries["real"][:, None, :, None])[..., 0]
    scaled = split_blocks(query * query.shape[3] ** -0.5, num_blocks, block_size)
    found, of_memory = attend(
        scaled,
        remembered,
        windows(entries["value"]),
        seen[..., None, :],
        dropout=dropout,
        seed=seeds[1],
    )
    found, of_memory = join_blocks(found, length), join_blocks(of_memory, length)
    return merge_pair((local, of_local), (found, of_memory)), entries, usage


def compressed(key, value, real, usage, memory):
    """Computes the entries of all blocks, and a mask of those without padding."""
    num_blocks, rate = ceil_div(size(key, 2), memory.block_size), memory.compression_rate
    blocks = {
        name: split_blocks(tf.stop_gradient(x), num_blocks, memory.block_size)
        for name, x in (("key", key), ("value", value))
    }
    real = split_blocks(real[:, None], num_blocks, memory.block_size, fill=False)
    if memory.compression == "most_used":
        usage = split_blocks(tf.stop_gradient(usage), num_blocks, memory.block_size)[..., 0]
        places = tf.sort(tf.math.top_k(usage, memory.entries).indices, axis=-1)
        found = {name: tf.gather(x, places, batch_dims=3) for name, x in blocks.items()}
        # Queries see either all entries of a block or none.
        real = tf.reduce_all(real, axis=3, keepdims=True)
        real = tf.broadcast_to(real, [*sizes(real)[:3], memory.entries])
    else:
        reduce = {"mean": tf.reduce_mean, "max": tf.reduce_max}.get(memory.compression)
        found = {
            name: _convolved(x, tf.stop_gradient(memory.kernels[name]), rate)
            if reduce is None
            else reduce(_runs(x, rate), axis=4)
            for name, x in blocks.items()
        }
        real = tf.reshape(real, [*sizes(real)[:3], memory.entries, rate])
        real = tf.reduce_all(real, axis=4)
    found = {name: join_blocks(x, num_blocks * memory.entries) for name, x in found.items()}
    return {**found, "real": join_blocks(real, num_blocks * memory.entries)[:, 0]}


def _runs(blocks, rate):
    """Splits `[batch, heads, blocks, block_size, depth]` to `[..., entries, rate, depth]`."""
    shape = sizes(blocks)
    return tf.reshape(blocks, [*shape[:3], shape[3] // rate, rate, shape[4]])


def _convolved(blocks, kernel, rate):
    """Convolves blocks with stride `rate` and one kernel per head."""
    return tf.einsum("bhmsrd,hrde->bhmse", _runs(blocks, rate), tf.cast(kernel, blocks.dtype))


def _usage(query, key, real, counted, of_local, memory):
    """Sums the weights that each position gets from the queries that have it in their window.

    Args:
        of_local: `[batch, heads, length]`, the logsumexp of each query's logits.
        counted: bool `[batch or 1, length]`, a mask of the queries that count.

    Returns:
        `[batch, heads, length, 1]`.
    """
    length, block_size = size(query, 2), memory.block_size
    num_blocks = ceil_div(length, block_size)
    query, key, of_local = (tf.stop_gradient(x) for x in (query, key, of_local))
    scaled = split_blocks(query * query.shape[3] ** -0.5, num_blocks, block_size)
    of_local = split_blocks(of_local[..., None], num_blocks, block_size)
    counted = tf.cast(split_blocks(counted[:, None, :, None], num_blocks, block_size), query.dtype)
    key = split_blocks(key, num_blocks, block_size)
    real = split_blocks(real[:, None], num_blocks, block_size)
    step = tf.range(block_size)
    total = 0
    for back in range(memory.look_back + 1):
        behind, seen = (pad_axis(x, 2, back, 0)[:, :, :num_blocks] for x in (key, real))
        distance = step[:, None] - step + back * block_size
        logits = tf.matmul(scaled, behind, transpose_b=True)
        if memory.relative_embeddings is not None:
            table = tf.stop_gradient(memory.relative_embeddings)
            logits += window_bias(scaled, table, block_size, back * block_size)
        weights = tf.exp(tf.cast(logits, of_local.dtype) - of_local)
        weights = tf.where(seen[..., None, :] & (distance >= 0), weights, 0)
        used = tf.reduce_sum(tf.cast(weights, query.dtype) * counted, axis=3)
        used = join_blocks(used, num_blocks * block_size)
        # Moves the weights to the block that they belong to.
        total += pad_axis(used, 2, 0, back * block_size)[:, :, back * block_size :]
    return total[:, :, :length, None]
