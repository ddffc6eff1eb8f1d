"""Memories of clusters: reading them, adding members, and evicting members from full ones."""

import tensorflow as tf

from rt_keras.ops.attend import MASKED, accumulation_dtype, pair_logits
from rt_keras.ops.blocks import size, sizes
from rt_keras.ops.ranks import sort_by_cluster


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
