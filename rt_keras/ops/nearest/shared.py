"""Nearest attention with shared queries and keys: local attention in the sorted order."""

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


def attend_sorted(query, key, value, clusters, options):
    """Computes attention with shared queries and keys, in the order of (cluster, position).

    Args:
        query: `[batch, heads, length, depth]`, scaled.
        key, value: `[batch, heads, length, ...]`.
        clusters: int `[batch, heads, 1, length]`, the cluster of each position.
        options: dictionary of the options of `attend_tiles`, and "causal".

    Returns:
        `[batch, heads, length, value_depth]`, and with "return_logsumexp" the logsumexp
        `[batch, heads, length]`.
    """
    length, causal = size(query, 2), options["causal"]
    num_clusters, window_size = options["num_clusters"], options["window_size"]
    block_size = block_size_of(window_size)
    num_blocks, chunks = round_to_chunks(ceil_div(length, block_size), options["chunks"])
    count = ceil_div(window_size, block_size) + 1
    # If keys are shifted, each query is the key of the next position instead.
    shifted = options["shifted"]
    before = window_size - (not shifted) if causal else window_size // 2
    order, place, _ = sort_by_cluster(clusters, num_clusters)
    # Counted from the last cluster, so that padding and entries beyond both ends have 0.
    clusters = num_clusters - tf.gather(clusters[:, :, 0], order, batch_dims=2)
    query = gather_rows(query, order, place)
    of_keys = {**sorted_keys(key, value, order, place, options), "key_clusters": clusters}
    per_block = {"query": query, "positions": order, "clusters": clusters}
    if "documents" in of_keys:
        per_block["of_queries"] = of_keys["documents"]
    per_block = {name: split_blocks(x, num_blocks, block_size) for name, x in per_block.items()}
    steps = tf.range(count * block_size) - tf.range(block_size)[:, None]

    def allowed(part, cut):
        of_window = cut["key_clusters"][..., None, :]
        same = (of_window == part["clusters"][..., None]) & (of_window > 0)
        same &= (steps >= 0) & (steps < window_size)
        return same & (steps != before) if shifted and not causal else same

    def windows(x, part):
        return overlapping_blocks(x, num_blocks, block_size, count, before)

    if chunks > 1:
        first = tf.zeros([size(query, 0), size(query, 1), 1], tf.int32) + tf.range(num_blocks)
        of_keys, per_block["window"], windows = gathered_windows(
            of_keys, first, num_blocks + count - 1, block_size, count, before
        )
    found = attend_blocks(per_block, of_keys, windows, allowed, chunks, options)
    if not options["return_logsumexp"]:
        return gather_rows(join_blocks(found, length), place, order)
    output, logsumexp = (join_blocks(x, length) for x in found)
    logsumexp = gather_rows(logsumexp[..., None], place, order)[..., 0]
    return gather_rows(output, place, order), logsumexp


# Maximum rows of a block: small enough to waste few keys, large enough to fill a matrix unit.
MAX_BLOCK_SIZE = 128


def block_size_of(window_size):
    """Returns the block size: the largest equal part of a window up to `MAX_BLOCK_SIZE`."""
    return ceil_div(window_size, ceil_div(window_size, MAX_BLOCK_SIZE))


def sorted_keys(key, value, order, place, options):
    """Sorts the tensors that windows are cut from, `[batch, heads, length, ...]`."""
    found = {"key": gather_rows(key, order, place), "value": gather_rows(value, order, place)}
    if options["relative_embeddings"] is not None:
        found["key_positions"] = _positions(order, options)
    if options.get("documents") is not None:
        documents = tf.broadcast_to(options["documents"][:, None], sizes(key)[:3])
        found["documents"] = tf.gather(documents, order, batch_dims=2)
    if options.get("seen") is not None:
        seen = tf.broadcast_to(options["seen"][:, None], sizes(key)[:3])
        found["seen"] = tf.gather(seen, order, batch_dims=2)
    return found


def _positions(order, options):
    """Returns the positions of the sorted keys: given ones, or their indices in the sequence."""
    if options.get("key_positions") is not None:
        return tf.gather(options["key_positions"], order, batch_dims=2)
    return order + 1 if options["shifted"] else order


def attend_blocks(per_block, of_keys, windows, allowed, chunks, options):
    """Computes attention of blocks of queries to windows of sorted keys, in chunks of blocks.

    Args:
        per_block: dictionary of arguments `[batch, heads, blocks, ...]`: "query", "positions",
            with documents theirs as "of_queries", and those that `windows` and `allowed` need.
        of_keys: dictionary of the tensors that windows are cut from; see `sorted_keys`.
        windows: function of a tensor of `of_keys` and the arguments of a chunk of blocks. It
            returns their windows, `[batch, heads, blocks, keys, ...]`.
        allowed: function of the arguments of a chunk and a dictionary of its windows. It returns a
            bool mask of the keys that each query attends to,
            `[batch, heads, blocks, queries, keys]`.
        chunks: int, number of chunks, a divisor of the number of blocks.
        options: dictionary of "dropout", "seed", "relative_embeddings" and "return_logsumexp", and
            optionally "bound", see `attend`.

    Returns:
        The output of each block's queries, `[batch, heads, blocks, queries, value_depth]`, and with
        "return_logsumexp" the logsumexp `[batch, heads, blocks, queries]`.
    """

    def attend_chunk(part):
        cut = {name: windows(part[name], part) for name in of_keys}
        bias = None
        if "key_positions" in cut:
            bias = pair_bias(
                part["query"], part["relative_embeddings"], part["positions"], cut["key_positions"]
            )
        masks = (allowed(part, cut),)
        if "documents" in cut:
            masks += (cut["documents"][..., None, :] == part["of_queries"][..., None],)
        if "seen" in cut:
            masks += (cut["seen"][..., None, :],)
        found = attend(
            part["query"],
            cut["key"],
            cut["value"],
            masks,
            bias=bias,
            bound=options.get("bound") if bias is None else None,
            dropout=options["dropout"],
            seed=part.get("seed"),
        )
        return found if options["return_logsumexp"] else found[0]

    shared = {**of_keys, **{name: options[name] for name in ("relative_embeddings", "seed")}}
    dtype = of_keys["value"].dtype
    if options["return_logsumexp"]:
        dtype = dtype, accumulation_dtype(of_keys["key"].dtype)
    return over_blocks(attend_chunk, per_block, shared, chunks, dtype)


def round_to_chunks(num_blocks, chunks):
    """Returns the number of blocks, rounded up to equal chunks, and the number of chunks."""
    if chunks == 1:
        return num_blocks, 1
    at_once = ceil_div(num_blocks, chunks)
    chunks = ceil_div(num_blocks, at_once)
    return chunks * at_once, chunks


def gathered_windows(of_keys, first, num_blocks, block_size, count, before):
    """Prepares windows of `count` blocks that may begin at any block.

    Args:
        of_keys: dictionary of `[batch, heads, length, ...]`.
        first: int `[batch, heads, windows]`, the first block of each window.
        num_blocks: int, number of blocks.
        block_size: int, positions in a block.
        count: int, blocks in a window.
        before: int, number of zeros before the first position.

    Returns:
        A dictionary of the blocks of each entry; the index of each window's first block among them;
        and a function of an entry's blocks and a dictionary with such indices as "window", which
        returns the windows.
    """
    batch, heads = size(first, 0), size(first, 1)
    blocks = {}
    for name, x in of_keys.items():
        x = split_blocks(pad_axis(x, 2, before, 0), num_blocks, block_size)
        blocks[name] = tf.reshape(x, [batch * heads * num_blocks, *sizes(x)[3:]])

    def windows(x, part):
        x = tf.gather(x, part["window"][..., None] + tf.range(count))
        shape = sizes(x)
        return tf.reshape(x, [*shape[:3], count * block_size, *shape[5:]])

    sequence = tf.reshape(tf.range(batch * heads), [batch, heads, 1])
    return blocks, sequence * num_blocks + first, windows
