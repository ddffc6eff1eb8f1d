"""Nearest attention with shared queries and keys: local attention in the sorted order."""

import tensorflow as tf

from rt_keras.ops.blocks import (
    ceil_div,
    gather_rows,
    join_blocks,
    overlapping_blocks,
    size,
    split_blocks,
)
from rt_keras.ops.nearest_windows import (
    attend_blocks,
    block_size_of,
    gathered_windows,
    round_to_chunks,
    sorted_keys,
)
from rt_keras.ops.ranks import sort_by_cluster


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
