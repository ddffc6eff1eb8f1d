"""Attention to the memories of clusters, which hold older members than their windows.

The naive version first, then a memory, and the attention of a chunk and of a step to it. How
members are found, join a memory and leave it is in `cluster_memory.py`.
"""

import numpy as np
import tensorflow as tf

from rt_keras.ops.attend import accumulation_dtype, attend
from rt_keras.ops.blocks import (
    ceil_div,
    join_blocks,
    larger,
    move_axis,
    places_of_rows,
    repeat_heads,
    size,
    split_blocks,
)
from rt_keras.ops.caches import like, put_rows
from rt_keras.ops.cluster_memory import best_members, choose, remember
from rt_keras.ops.local.cached import JoinedChunk
from rt_keras.ops.naive import naive_normalize, naive_softmax
from rt_keras.ops.nearest.lists import counts_at, search_lists

EVICTIONS = ("oldest", "random", "least_attended", "merged")


def naive_memory(
    query,
    key,
    value,
    centroids,
    load_bias,
    scale,
    *,
    window_size,
    memory_length,
    memory_keys,
    block_size,
    eviction,
    num_probes=1,
    use_query_key_norm=True,
    first=0,
    survivors=None,
):
    """The equation of `memory_chunk` for the queries `[length, depth]` of one row and head.

    Key i is the routed key of position i, which the positions before `first` do not have.
    `survivors` are the numbers that "random" keeps, `[clusters, ...]`, by the last position of a
    block. Returns the logits and values that each query sees, and the memories at the end.
    """
    vectors = query, key
    query, key = naive_normalize(query), naive_normalize(key)
    query_clusters = np.argsort(-(query @ centroids.T + load_bias), axis=1, kind="stable")
    key_clusters = np.argmax(key @ centroids.T + load_bias, axis=1)
    query, key = (query, key) if use_query_key_norm else vectors
    memories, block = [[] for _ in centroids], [[] for _ in centroids]
    counts, results = np.zeros(len(centroids), int), []
    for i, cluster in enumerate(key_clusters):
        if i >= first:
            member = {"key": key[i], "value": value[i], "number": counts[cluster]}
            block[cluster].append({**member, "attention": 0, "queries": 0})
            counts[cluster] += 1
        scaled, members = scale * query[i] / len(query[i]) ** 0.5, []
        for c in query_clusters[i, :num_probes]:
            seen = [m for m in memories[c] if m["number"] < counts[c] - window_size]
            members += sorted(seen, key=lambda m, x=scaled: -x @ m["key"])[:memory_keys]
            for member in memories[c]:
                member["queries"] += 1
        logits = [scaled @ member["key"] for member in members]
        for member, weight in zip(members, naive_softmax(np.array(logits), True)):
            member["attention"] += weight
        results.append((logits, [member["value"] for member in members]))
        if i % block_size == block_size - 1:
            for c, arrived in enumerate(block):
                numbers = None if survivors is None else survivors[i][c]
                memories[c] = naive_evict(memories[c], arrived, memory_length, eviction, numbers)
            block = [[] for _ in centroids]
    return results, memories


def naive_evict(held, arrived, memory_length, eviction, survivors=None):
    """The members of a memory after those of a block have joined it."""
    gone = max(len(held) + len(arrived) - memory_length, 0)
    if eviction == "merged":
        members = held + arrived
        pairs = zip(members[: 2 * gone : 2], members[1 : 2 * gone : 2])
        means = [
            {**b, "key": (a["key"] + b["key"]) / 2, "value": (a["value"] + b["value"]) / 2}
            for a, b in pairs
        ]
        return means + members[2 * gone :]
    if eviction == "oldest":
        order = np.arange(len(held))
    elif eviction == "random":
        order = np.argsort([m["number"] in survivors for m in held], kind="stable")
    else:
        rates = [m["attention"] / m["queries"] if m["queries"] else np.inf for m in held]
        order = np.argsort(rates, kind="stable")
    return [held[j] for j in sorted(order[gone:])] + arrived


def empty_memory(query, value, num_clusters, *, memory_length, block_size, eviction):
    """Builds the memory of clusters before the first position.

    Args:
        query: `[batch, heads, length, depth]`; only its shape is used.
        value: `[batch, key_heads, length, value_depth]`; only its shape and dtype are used.
        num_clusters: int, number of clusters.
        memory_length: int, maximum number of members in the memory of a cluster.
        block_size: int, number of positions after which memories are updated, at most
            `memory_length`.
        eviction: see `memory_chunk`.

    Returns:
        A dictionary of "key" and "value", `[batch, heads, clusters, memory_length, ...]`; "number",
        int `[batch, heads, clusters, memory_length]`, the number of each member in its cluster, -1
        for empty slots; "counts", int `[batch, heads, clusters]`, the number of members added to
        each cluster so far; "new_key", "new_value" and "new_cluster",
        `[batch, heads, block_size, ...]`, those of the unfinished block; and for "least_attended",
        "attention" and "queries", float32 with the shape of "number": the attention that each
        member has received, and the number of queries of its cluster since it was added.
    """
    batch, heads, dtype = size(query, 0), query.shape[1], value.dtype
    depth, value_depth = query.shape[3], size(value, 3)
    shape = [batch, heads, num_clusters, memory_length]
    memory = {
        "key": tf.zeros([*shape, depth], dtype),
        "value": tf.zeros([*shape, value_depth], dtype),
        "number": tf.fill(shape, -1),
        "counts": tf.zeros(shape[:3], tf.int32),
        "new_key": tf.zeros([batch, heads, block_size, depth], dtype),
        "new_value": tf.zeros([batch, heads, block_size, value_depth], dtype),
        "new_cluster": tf.fill([batch, heads, block_size], num_clusters),
    }
    if eviction == "least_attended":
        memory |= {name: tf.zeros(shape, tf.float32) for name in ("attention", "queries")}
    return memory


def memory_chunk(
    query,
    key,
    value,
    memory,
    position,
    assignment,
    *,
    window_size,
    memory_keys,
    eviction="oldest",
    are_keys=None,
    count=None,
    dropout=0.0,
    seed=None,
):
    """Computes causal attention of a chunk to the memories of its clusters.

    Members of a cluster are numbered from 0. With r the number of members of query i's cluster up
    to i, and M(i) the members in the cluster's memory at the start of the block of i, except those
    numbered from r - window_size, which `nearest_attention` sees:

    ```
    output_i = sum_j softmax_j(logit_ij) value_j    over the memory_keys best j in M(i)
    logit_ij = s query_i · key_j / sqrt(depth)
    ```

    At the end of each block of positions, its members are added to the memories of their clusters.
    If a cluster has more than `window_size` members in the unfinished block, no query sees the
    first of them until then. Members are evicted from full memories by `eviction`:

    - "oldest": those that were added first;
    - "random": any, all being equally likely;
    - "least_attended": those with the least attention from the queries of their cluster, averaged
      over all such queries since they were added;
    - "merged": none; the oldest ones are averaged in pairs.

    No gradient passes through the memory; only queries get one. Each query copies the `memory_keys`
    keys and values that it sees, so a small `memory_keys` saves memory.

    Args:
        query: `[batch, heads, length, depth]`, not normalized.
        key: `[batch, heads, length, depth]`, the routed key of each position, not normalized.
        value: `[batch, key_heads, length, value_depth]`.
        memory: the memory of `empty_memory` or of the last chunk.
        position: int scalar, the chunk's first position; or int `[batch]`, one for each row.
        assignment: the `Assignment`; a query sees `num_probes` memories, and `scale` is s above.
        window_size: int, number of the last members of its cluster that a query does not see here.
        memory_keys: int, maximum number of members that a query sees in one memory.
        eviction: one of `EVICTIONS`. Defaults to "oldest".
        are_keys: bool `[batch or 1, length]`, True for positions that have a key; None for all.
        count: int scalar or `[batch]`, number of the chunk's positions that are not padding, the
            first ones. Defaults to None, for no padding.
        dropout: float, share of the attention weights set to 0. Defaults to 0.
        seed: int `[2]`, needed if `dropout` is above 0.

    Returns:
        `[batch, heads, length, value_depth]`, 0 for a query without keys; the logsumexp
        `[batch, heads, length]`; and the memory after these positions.

    Source: ours. Attention to the nearest keys of a memory without a gradient: Wu et al. 2022,
    Memorizing Transformers, section 3; joined members: Rae et al. 2020, section 3.

    >>> from rt_keras.ops.nearest.assign import Assignment
    >>> x, assignment = tf.random.normal([1, 2, 50, 4]), Assignment(tf.random.normal([2, 3, 4]))
    >>> sizes = {"memory_length": 16, "block_size": 10, "eviction": "oldest"}
    >>> memory = empty_memory(x, x, 3, **sizes)
    >>> output, _, memory = memory_chunk(
    ...     x, x, x, memory, 0, assignment, window_size=2, memory_keys=4
    ... )
    >>> output.shape, int(tf.reduce_max(memory["counts"])) > 0
    (TensorShape([1, 2, 50, 4]), True)
    """
    length, block_size = size(query, 2), size(memory["new_key"], 2)
    joined = JoinedChunk(position, count, length, block_size, block_size, look_back=0)
    begun, num_blocks = _count_blocks(position, length, block_size)

    def split(aligned):
        """Splits `[batch, heads, length, ...]` to `[blocks, batch, heads, block_size, ...]`."""
        aligned = aligned[:, :, : num_blocks * block_size]
        return move_axis(split_blocks(aligned, num_blocks, block_size), 2, 0)

    def split_queries(x):
        return split(joined.align_queries(x))

    assigned = assignment.assign(query, key, key_mask=are_keys)
    query = assignment.scaled(assigned.query)
    is_query = tf.range(length) < places_of_rows(length if count is None else count, 0)
    is_query = tf.broadcast_to(is_query, [size(query, 0), length])
    sequences = {
        name: joined.join(memory[f"new_{name}"], tf.stop_gradient(x))
        for name, x in _new_members(assigned, value).items()
    }
    blocks = {
        "query": split_queries(tf.stop_gradient(query)),
        "query_cluster": split_queries(tf.linalg.matrix_transpose(assigned.query_clusters)),
        "is_query": split_queries(is_query[:, None]),
        "real": split(joined.real[:, None]),
        **{name: split(joined.align(x)) for name, x in sequences.items()},
    }
    chosen, after = _over_blocks(
        lambda block, stored: _read_block(block, stored, window_size, memory_keys, eviction),
        blocks,
        _stored(memory),
        begun,
        assignment.num_probes * min(memory_keys, memory["key"].shape[3]),
    )
    # [batch, heads, length, num_probes * memory_keys, ...]
    chosen = [joined.of_chunk(join_blocks(move_axis(x, 0, 2), joined.total)) for x in chosen]
    after |= {f"new_{name}": joined.ring_of(x) for name, x in sequences.items()}
    return *_attend(query, chosen, dropout, seed), like(after, memory)


def _count_blocks(position, length, block_size):
    """Returns the number of blocks that a chunk has begun, and of those that it may have begun."""
    # The number is only known if the position is an int.
    first = position if isinstance(position, int) else tf.reduce_max(position % block_size)
    # An empty sequence is one block of padding.
    begun = larger(ceil_div(first % block_size + length, block_size), 1)
    return begun, begun if isinstance(begun, int) else ceil_div(length, block_size) + 1


def _read_block(block, stored, window_size, memory_keys, eviction):
    """Chooses the members that the queries of a block see, and adds its members if it has ended."""
    num_clusters, query = size(stored["key"], 2), block["query"]
    # [batch, heads, num_probes, block_size]
    query_clusters = tf.linalg.matrix_transpose(block["query_cluster"])
    key_clusters = tf.where(block["real"], block["cluster"], num_clusters)[:, :, None]
    last = counts_at(stored["counts"], query_clusters, key_clusters) - window_size - 1

    def search(query, last, key, number):
        return best_members(query, last, key, number, memory_keys)

    dtypes = accumulation_dtype(query.dtype), tf.int32
    lists = stored["key"], stored["number"]
    best = search_lists(search, query, query_clusters, *lists, last, dtypes)
    chosen, stored = choose(stored, query_clusters, *best, block["is_query"])
    # A block has ended once it has its last position.
    ended = block["real"] & block["real"][..., -1:]
    key_clusters = tf.where(ended, block["cluster"], num_clusters)
    return chosen, remember(stored, block["key"], block["value"], key_clusters, eviction)


def memory_step(
    query,
    key,
    value,
    memory,
    position,
    assignment,
    *,
    window_size,
    memory_keys,
    eviction="oldest",
    are_keys=None,
    count=None,
):
    """Computes `memory_chunk` of one position.

    Args:
        query, key: `[batch, heads, 1, depth]`.
        value: `[batch, key_heads, 1, value_depth]`.
        memory: the memory of `empty_memory`, or of the last chunk or step.
        position: int scalar, the query's position; or int `[batch]`, one for each row.
        assignment, window_size, memory_keys, eviction, are_keys: see `memory_chunk`.
        count: int `[batch]`, 0 for rows whose position is padding: their memory is unchanged, and
            their outputs are undefined. Defaults to None, for no padding.

    Returns:
        `[batch, heads, 1, value_depth]`, 0 for a query without keys; the logsumexp
        `[batch, heads, 1]`; and the memory after this position.

    >>> from rt_keras.ops.nearest.assign import Assignment
    >>> x, assignment = tf.random.normal([1, 2, 1, 4]), Assignment(tf.random.normal([2, 3, 4]))
    >>> sizes = {"memory_length": 16, "block_size": 10, "eviction": "oldest"}
    >>> memory = empty_memory(x, x, 3, **sizes)
    >>> memory_step(x, x, x, memory, 0, assignment, window_size=2, memory_keys=4)[0].shape
    TensorShape([1, 2, 1, 4])
    """
    num_clusters, block_size = assignment.centroids.shape[1], size(memory["new_key"], 2)
    assigned = assignment.assign(query, key, key_mask=are_keys)
    slot = places_of_rows(position % block_size, 0)
    new = {
        name: put_rows(memory[f"new_{name}"], slot[..., None], x, count)
        for name, x in _new_members(assigned, value).items()
    }
    # [batch, heads, block_size]
    key_clusters = tf.where(tf.range(block_size) <= slot[..., None], new["cluster"], num_clusters)
    clusters = assigned.query_clusters[..., 0]  # [batch, heads, num_probes]
    same = key_clusters[:, :, None] == clusters[..., None]
    arrived = tf.reduce_sum(tf.cast(same, tf.int32), axis=3)
    last = tf.gather(memory["counts"], clusters, batch_dims=2) + arrived - window_size - 1
    stored = _stored(memory)
    query = assignment.scaled(assigned.query)
    # [batch, heads, num_probes, memory_length, ...]
    lists = (tf.gather(stored[name], clusters, batch_dims=2) for name in ("key", "number"))
    best = best_members(query[:, :, None], last[..., None], *lists, memory_keys)
    is_query = True if count is None else tf.reshape(count > 0, [-1, 1, 1])
    chosen, stored = choose(stored, assigned.query_clusters, *best, is_query)
    ended = (slot[..., None] == block_size - 1) & is_query
    key_clusters = tf.where(ended, key_clusters, num_clusters)
    stored = tf.cond(
        tf.reduce_any(ended),
        lambda: remember(stored, new["key"], new["value"], key_clusters, eviction),
        lambda: stored,
    )
    stored = {**stored, **{f"new_{name}": x for name, x in new.items()}}
    return *_attend(query, chosen), like(stored, memory)


def _stored(memory):
    """Returns the entries of a memory that are not those of the unfinished block."""
    return {name: x for name, x in memory.items() if not name.startswith("new_")}


def _new_members(assigned, value):
    """Returns the tensors that an unfinished block stores for its positions."""
    value = repeat_heads(value, assigned.key.shape[1])
    return {"key": assigned.key, "value": value, "cluster": assigned.key_clusters[:, :, 0]}


def _attend(query, chosen, dropout=0.0, seed=None):
    """Computes the output and the logsumexp of queries, each with its own chosen keys."""
    key, value, there = (tf.stop_gradient(x) for x in chosen)
    # [batch, heads, length, 1, ...]: a block has one query.
    results = attend(
        query[..., None, :], key, value, there[..., None, :], dropout=dropout, seed=seed
    )
    return [tf.squeeze(x, axis=3) for x in results]


def _over_blocks(read_block, blocks, stored, begun, members):
    """Reads blocks one after the other, each with the memory at its beginning.

    Args:
        read_block: function of a block's dictionary and a memory. It returns the keys and values
            that its queries see, `[batch, heads, block_size, members, ...]`, a mask of those that
            there are, and the memory after the block.
        blocks: dictionary of `[blocks, ...]`.
        stored: the memory before the first block.
        begun: int or int scalar, number of blocks to read, the first ones.
        members: int, number of members that a query sees.

    Returns:
        Keys, values and mask, `[blocks, ...]` each, and the memory after the last block.
    """
    count, shape = size(blocks["query"], 0), [*blocks["query"].shape[1:4], members]

    def step(index, stored, arrays):
        chosen, after = read_block({name: x[index] for name, x in blocks.items()}, stored)
        arrays = [array.write(index, x) for array, x in zip(arrays, chosen)]
        return index + 1, like(after, stored), arrays

    arrays = [
        tf.TensorArray(x.dtype, count, element_shape=[*shape, x.shape[4]])
        for x in (stored["key"], stored["value"])
    ]
    arrays += [tf.TensorArray(tf.bool, count, element_shape=shape)]
    _, stored, arrays = tf.while_loop(
        lambda index, *_: index < begun, step, (tf.constant(0), stored, arrays)
    )
    return [array.stack() for array in arrays], stored
