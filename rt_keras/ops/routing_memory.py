"""Attention to the memories of clusters, which hold older members."""

import tensorflow as tf

from rt_keras.ops.attend import MASKED, accumulation_dtype, attend, pair_logits
from rt_keras.ops.blocks import (
    ceil_div,
    join_blocks,
    larger,
    move_axis,
    places_of_rows,
    repeat_heads,
    size,
    sizes,
    split_blocks,
)
from rt_keras.ops.caches import like, put_rows
from rt_keras.ops.local.cached import JoinedChunk
from rt_keras.ops.nearest.assign import Routing, sort_by_cluster
from rt_keras.ops.nearest.rings import counts_at, of_lists

EVICTIONS = ("oldest", "random", "least_attended", "merged")


def memory_chunk(
    query,
    key,
    value,
    memory,
    position,
    centroids,
    *,
    window_size,
    memory_keys,
    eviction="oldest",
    are_keys=None,
    count=None,
    dropout=0.0,
    seed=None,
    **routing,
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
        centroids: `[key_heads, clusters, depth]`.
        window_size: int, number of the last members of its cluster that a query does not see here.
        memory_keys: int, maximum number of members that a query sees in one memory.
        eviction: one of `EVICTIONS`. Defaults to "oldest".
        are_keys: bool `[batch or 1, length]`, True for positions that have a key; None for all.
        count: int scalar or `[batch]`, number of the chunk's positions that are not padding, the
            first ones. Defaults to None, for no padding.
        dropout: float, share of the attention weights set to 0. Defaults to 0.
        seed: int `[2]`, needed if `dropout` is above 0.
        **routing: `num_probes`, the number of memories that a query sees, `load_bias`, `scale`, s
            above, and `use_query_key_norm` of `Routing`.

    Returns:
        `[batch, heads, length, value_depth]`, 0 for a query without keys; the logsumexp
        `[batch, heads, length]`; and the memory after these positions.

    Source: ours. Attention to the nearest keys of a memory without a gradient: Wu et al. 2022,
    Memorizing Transformers, section 3; joined members: Rae et al. 2020, section 3.

    >>> from rt_keras.ops.routing_memory import empty_memory
    >>> x, centroids = tf.random.normal([1, 2, 50, 4]), tf.random.normal([2, 3, 4])
    >>> sizes = {"memory_length": 16, "block_size": 10, "eviction": "oldest"}
    >>> memory = empty_memory(x, x, 3, **sizes)
    >>> output, _, memory = memory_chunk(
    ...     x, x, x, memory, 0, centroids, window_size=2, memory_keys=4
    ... )
    >>> output.shape, int(tf.reduce_max(memory["counts"])) > 0
    (TensorShape([1, 2, 50, 4]), True)
    """
    num_clusters = centroids.shape[1]
    length, block_size = size(query, 2), size(memory["new_key"], 2)
    joined = JoinedChunk(position, count, length, block_size, block_size, look_back=0)
    # An empty sequence is one block of padding. The number is only known if the position is an int.
    first = position if isinstance(position, int) else tf.reduce_max(position % block_size)
    begun = larger(ceil_div(first % block_size + length, block_size), 1)
    num_blocks = begun if isinstance(begun, int) else ceil_div(length, block_size) + 1

    def blocks(aligned):
        """Splits `[batch, heads, length, ...]` to `[blocks, batch, heads, block_size, ...]`."""
        aligned = aligned[:, :, : num_blocks * block_size]
        return move_axis(split_blocks(aligned, num_blocks, block_size), 2, 0)

    routing = Routing(centroids, **routing)
    routed = routing.route(query, key, key_mask=are_keys)
    query = routing.scaled(routed.query)
    new = _members(routed, value)
    sequences = {
        name: joined.join(memory[f"new_{name}"], tf.stop_gradient(x)) for name, x in new.items()
    }
    asked = tf.range(length) < places_of_rows(length if count is None else count, 0)
    asked = tf.broadcast_to(asked, [size(query, 0), length])
    of_blocks = {
        "query": blocks(joined.align_queries(tf.stop_gradient(query))),
        "query_cluster": blocks(
            joined.align_queries(tf.linalg.matrix_transpose(routed.of_queries))
        ),
        "asked": blocks(joined.align_queries(asked[:, None])),
        "real": blocks(joined.real[:, None]),
        **{name: blocks(joined.align(x)) for name, x in sequences.items()},
    }
    kept = {name: x for name, x in memory.items() if not name.startswith("new_")}

    def read_block(block, kept):
        of_queries = tf.linalg.matrix_transpose(block["query_cluster"])
        of_keys = tf.where(block["real"], block["cluster"], num_clusters)[:, :, None]
        border = counts_at(kept["counts"], of_queries, of_keys) - window_size - 1

        def best(part, lists):
            return best_members(part["query"], part["border"], lists, memory_keys)

        lists = {name: kept[name] for name in ("key", "number")}
        dtypes = accumulation_dtype(query.dtype), tf.int32
        found = of_lists(best, block["query"], of_queries, lists, border, -1, dtypes)
        chosen, kept = choose(kept, of_queries, *found, block["asked"])
        # A block is finished once it has its last position.
        ended = block["real"] & block["real"][..., -1:]
        of_keys = tf.where(ended, block["cluster"], num_clusters)
        return chosen, remember(kept, block["key"], block["value"], of_keys, eviction)

    seen = routing.num_probes * min(memory_keys, memory["key"].shape[3])
    shape = [query.shape[0], query.shape[1], block_size, seen]
    specs = [tf.TensorSpec([*shape, x.shape[4]], x.dtype) for x in (memory["key"], memory["value"])]
    specs += [tf.TensorSpec(shape, tf.bool)]
    chosen, kept = _over_blocks(read_block, of_blocks, kept, begun, specs)
    chosen = [joined.of_chunk(join_blocks(move_axis(x, 0, 2), joined.total)) for x in chosen]
    rings = {f"new_{name}": joined.ring_of(x) for name, x in sequences.items()}
    return *_attend(query, chosen, dropout, seed), like({**kept, **rings}, memory)


def memory_step(
    query,
    key,
    value,
    memory,
    position,
    centroids,
    *,
    window_size,
    memory_keys,
    eviction="oldest",
    are_keys=None,
    count=None,
    **routing,
):
    """Computes `memory_chunk` of one position.

    Args:
        query, key: `[batch, heads, 1, depth]`.
        value: `[batch, key_heads, 1, value_depth]`.
        memory: the memory of `empty_memory`, or of the last chunk or step.
        position: int scalar, the query's position; or int `[batch]`, one for each row.
        centroids, window_size, memory_keys, eviction, are_keys: see `memory_chunk`.
        count: int `[batch]`, 0 for rows whose position is padding: their memory is unchanged, and
            their outputs are undefined. Defaults to None, for no padding.
        **routing: see `memory_chunk`.

    Returns:
        `[batch, heads, 1, value_depth]`, 0 for a query without keys; the logsumexp
        `[batch, heads, 1]`; and the memory after this position.

    >>> from rt_keras.ops.routing_memory import empty_memory
    >>> x, centroids = tf.random.normal([1, 2, 1, 4]), tf.random.normal([2, 3, 4])
    >>> sizes = {"memory_length": 16, "block_size": 10, "eviction": "oldest"}
    >>> memory = empty_memory(x, x, 3, **sizes)
    >>> memory_step(x, x, x, memory, 0, centroids, window_size=2, memory_keys=4)[0].shape
    TensorShape([1, 2, 1, 4])
    """
    num_clusters, block_size = centroids.shape[1], size(memory["new_key"], 2)
    routing = Routing(centroids, **routing)
    routed = routing.route(query, key, key_mask=are_keys)
    place = places_of_rows(position % block_size, 0)
    new = {
        name: put_rows(memory[f"new_{name}"], place, x, count)
        for name, x in _members(routed, value).items()
    }
    of_new = tf.where(tf.range(block_size) <= place[..., None], new["cluster"], num_clusters)
    sought = routed.of_queries[..., 0]
    arrived = tf.reduce_sum(tf.cast(of_new[:, :, None] == sought[..., None], tf.int32), axis=3)
    border = tf.gather(memory["counts"], sought, batch_dims=2) + arrived - window_size - 1
    kept = {name: x for name, x in memory.items() if not name.startswith("new_")}
    query = routing.scaled(routed.query)
    lists = {name: tf.gather(kept[name], sought, batch_dims=2) for name in ("key", "number")}
    found = best_members(query[:, :, None], border[..., None], lists, memory_keys)
    counts = True if count is None else tf.reshape(count > 0, [-1, 1, 1])
    chosen, kept = choose(kept, routed.of_queries, *found, counts)
    ended = (place[..., None] == block_size - 1) & counts
    of_new = tf.where(ended, of_new, num_clusters)
    kept = tf.cond(
        tf.reduce_any(ended),
        lambda: remember(kept, new["key"], new["value"], of_new, eviction),
        lambda: kept,
    )
    rings = {f"new_{name}": x for name, x in new.items()}
    return *_attend(query, chosen), like({**kept, **rings}, memory)


def _members(routed, value):
    """Returns the tensors that an unfinished block stores for its positions."""
    value = repeat_heads(value, routed.key.shape[1])
    return {"key": routed.key, "value": value, "cluster": routed.of_keys[:, :, 0]}


def _attend(query, chosen, dropout=0.0, seed=None):
    """Computes the output and the logsumexp of queries, each with its own chosen keys."""
    key, value, there = (tf.stop_gradient(x) for x in chosen)
    found = attend(query[..., None, :], key, value, there[..., None, :], dropout=dropout, seed=seed)
    return [tf.squeeze(x, axis=3) for x in found]


def _over_blocks(read_block, of_blocks, kept, begun, specs):
    """Reads blocks one after the other, each with the memory at its beginning.

    Args:
        read_block: function of a block's dictionary and a memory. It returns a tuple of tensors,
            which its queries see, and the memory after the block.
        of_blocks: dictionary of `[blocks, ...]`.
        kept: the memory before the first block.
        begun: int or int scalar, number of blocks to read, the first ones.
        specs: the `tf.TensorSpec` of each of those tensors.

    Returns:
        The tensors, `[blocks, ...]` each, and the memory after the last block.
    """
    count = size(of_blocks["query"], 0)

    def step(index, kept, arrays):
        found, after = read_block({name: x[index] for name, x in of_blocks.items()}, kept)
        arrays = [array.write(index, x) for array, x in zip(arrays, found)]
        return index + 1, like(after, kept), arrays

    arrays = [tf.TensorArray(x.dtype, count, element_shape=x.shape) for x in specs]
    _, kept, arrays = tf.while_loop(
        lambda index, *_: index < begun, step, (tf.constant(0), kept, arrays)
    )
    return [array.stack() for array in arrays], kept


def empty_memory(query, value, num_clusters, *, memory_length, block_size, eviction):
    """Builds the memory of clusters before the first position.

    Args:
        query: `[batch, heads, length, depth]`; only its shape is used.
        value: `[batch, key_heads, length, value_depth]`; only its shape and dtype are used.
        num_clusters: int, number of clusters.
        memory_length: int, maximum number of members in the memory of a cluster.
        block_size: int, number of positions after which memories are updated, at most
            `memory_length`.
        eviction: see `rt_keras.ops.routing_memory.memory_chunk`.

    Returns:
        A dictionary of "key" and "value", `[batch, heads, clusters, memory_length, ...]`; "number",
        int `[batch, heads, clusters, memory_length]`, the number of each member in its cluster, -1
        for empty slots; "counts", int `[batch, heads, clusters]`, the number of members added to
        each cluster so far; "new_key", "new_value" and "new_cluster",
        `[batch, heads, block_size, ...]`, those of the unfinished block; and for "least_attended",
        "used" and "asked", float32 with the shape of "number": the attention that each member has
        received, and the number of queries of its cluster since it was added.
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
        memory |= {name: tf.zeros(shape, tf.float32) for name in ("used", "asked")}
    return memory


def best_members(query, border, lists, count):
    """Finds the members with the highest logits, among those that queries may see.

    Args:
        query: `[..., queries, depth]`, scaled.
        border: int `[..., queries]`, the number of the last member that each query may see.
        lists: dictionary of "key", `[..., members, depth]`, and "number", `[..., members]`.
        count: int, number of members to find.

    Returns:
        The logits of the members, `MASKED` for those that a query may not see, and their indices,
        int; both `[..., queries, count]`.
    """
    number = lists["number"][..., None, :]
    there = (number >= 0) & (number <= border[..., None])
    logits = tf.cast(pair_logits(query, lists["key"]), accumulation_dtype(query.dtype))
    logits = tf.where(there, logits, tf.constant(MASKED, logits.dtype))
    return tuple(tf.math.top_k(logits, min(count, logits.shape[-1])))


def choose(kept, of_queries, logits, places, asked):
    """Gathers the members that queries see, and records their use for "least_attended".

    Args:
        kept: the memory.
        of_queries: int `[batch, heads, probes, length]`, the clusters of each query.
        logits, places: `[batch, heads, probes, length, count]`; see `best_members`.
        asked: bool, broadcastable to `[batch, heads, length]`, False for padding.

    Returns:
        A tuple of keys and values, `[batch, heads, length, probes * count, ...]`, and a bool mask
        of those that a query sees; and the updated memory.
    """
    batch, heads, num_clusters, members = sizes(kept["number"])
    lists = tf.reshape(tf.range(batch * heads), [batch, heads, 1, 1]) * num_clusters + of_queries

    def of_queries_last(x):
        """`[batch, heads, probes, length, count]` to `[batch, heads, length, probes * count]`."""
        _, _, probes, length, count = sizes(x)
        x = tf.transpose(x, [0, 1, 3, 2, 4])
        return tf.reshape(x, [batch, heads, length, probes * count])

    places = of_queries_last(lists[..., None] * members + places)
    logits = of_queries_last(logits)
    there = logits > MASKED / 2
    count = batch * heads * num_clusters * members
    flat = {
        name: tf.reshape(x, [count, *sizes(x)[4:]]) for name, x in kept.items() if name != "counts"
    }
    chosen = tf.gather(flat["key"], places), tf.gather(flat["value"], places), there
    if "used" not in kept:
        return chosen, kept
    weights = tf.where(there, tf.cast(tf.nn.softmax(logits), tf.float32), 0.0)
    asked = tf.cast(tf.broadcast_to(asked, sizes(logits)[:3]), tf.float32)
    used = tf.tensor_scatter_nd_add(flat["used"], places[..., None], weights * asked[..., None])
    queries = tf.one_hot(of_queries, num_clusters) * asked[:, :, None, :, None]
    return chosen, {
        **kept,
        "used": tf.reshape(used, sizes(kept["used"])),
        "asked": kept["asked"] + tf.reduce_sum(queries, axis=[2, 3])[..., None],
    }


def remember(kept, key, value, of_keys, eviction):
    """Adds members to a memory, and evicts others from clusters that are full.

    Args:
        kept: the memory.
        key, value: `[batch, heads, length, ...]`, of at most `memory_length` positions.
        of_keys: int `[batch, heads, length]`, their clusters; the number of clusters for none.
        eviction: see `rt_keras.ops.routing_memory.memory_chunk`.

    Returns:
        The updated memory.
    """
    num_clusters, places = size(kept["key"], 2), size(kept["key"], 3)
    order, _, starts = sort_by_cluster(of_keys[:, :, None], num_clusters)
    starts, ends = starts[..., :-2, None], starts[..., 1:-1, None]
    held = tf.reduce_sum(tf.cast(kept["number"] >= 0, tf.int32), axis=3, keepdims=True)
    gone = tf.maximum(held + ends - starts - places, 0)
    ranking = _first_to_go(kept, eviction)

    def candidates(which):
        """Returns entries of the list of old members, in order of eviction, and then new ones."""
        old, new = tf.minimum(which, places - 1), which - held
        if ranking is not None:
            # Reordered only if members are evicted. The order and the choice between equal members
            # therefore depend on the finished blocks, not on the chunks.
            old = tf.where(gone > 0, tf.gather(ranking, old, batch_dims=3), old)
        arrived = {
            "number": kept["counts"][..., None] + new,
            "used": tf.zeros(tf.shape(which)),
            "asked": tf.zeros(tf.shape(which)),
        }
        new = tf.clip_by_value(new + starts, 0, size(order, 2) - 1)
        new = tf.gather(order, new, batch_dims=2)
        arrived |= {"key": tf.gather(key, new, batch_dims=2)}
        arrived |= {"value": tf.gather(value, new, batch_dims=2)}

        def one_of_both(name):
            x = tf.gather(kept[name], old, batch_dims=3)
            is_old = tf.reshape(which < held, [*sizes(which), *[1] * (x.shape.rank - 4)])
            return tf.where(is_old, x, tf.cast(arrived[name], x.dtype))

        return {name: one_of_both(name) for name in kept if name != "counts"}

    place = tf.range(places)
    found = candidates(place + (tf.minimum(place + 1, gone) if eviction == "merged" else gone))
    if eviction == "merged":
        # The oldest members are averaged in pairs, any other with itself.
        others = candidates(place + tf.minimum(place, gone))
        for name in ("key", "value"):
            found[name] = (found[name] + others[name]) / 2
    there = place < held + ends - starts - gone
    found["number"] = tf.where(there, found["number"], -1)
    return {**found, "counts": kept["counts"] + (ends - starts)[..., 0]}


def _first_to_go(kept, eviction):
    """Returns the slots of a memory in order of eviction, with empty ones last.

    Returns:
        int `[batch, heads, clusters, memory_length]`; or None if they are in order already.
    """
    if eviction in ("oldest", "merged"):
        return None
    if eviction == "random":
        value = _mixed(kept["number"], kept["counts"][..., None])
    else:
        # Members that no query could attend to yet are kept.
        value = tf.where(kept["asked"] > 0, kept["used"] / tf.maximum(kept["asked"], 1), 1e30)
    value = tf.where(kept["number"] >= 0, value, value.dtype.max)
    return tf.argsort(value, axis=-1)


def _mixed(number, counts):
    """Returns pseudorandom non-negative float32 numbers, determined by the arguments."""
    x = tf.cast(number, tf.uint32) * 2654435761 + tf.cast(counts, tf.uint32) * 2246822519
    for shift, factor in ((15, 2246822519), (13, 3266489917)):
        x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, tf.cast(shift, tf.uint32)))
        x *= factor
    return tf.cast(tf.bitwise.right_shift(x, tf.constant(8, tf.uint32)), tf.float32)
