"""Memories of clusters: finding members, adding some, and evicting others from full memories."""

import tensorflow as tf

from rt_keras.ops.attend import MASKED, accumulation_dtype, pair_logits
from rt_keras.ops.blocks import size, sizes
from rt_keras.ops.nearest.assign import sort_by_cluster
from rt_keras.ops.random import mix


def best_members(query, last, key, number, count):
    """Finds the members with the highest logits, among those that queries may see.

    Args:
        query: `[..., queries, depth]`, scaled.
        last: int `[..., queries]`, the number of the last member that each query may see.
        key: `[..., members, depth]`.
        number: int `[..., members]`.
        count: int, number of members to find.

    Returns:
        The logits of the members, `MASKED` for those that a query may not see, and their indices,
        int; both `[..., queries, count]`.
    """
    number = number[..., None, :]
    visible = (number >= 0) & (number <= last[..., None])
    logits = tf.cast(pair_logits(query, key), accumulation_dtype(query.dtype))
    logits = tf.where(visible, logits, tf.constant(MASKED, logits.dtype))
    return tuple(tf.math.top_k(logits, min(count, logits.shape[-1])))


def choose(stored, query_clusters, logits, places, is_query):
    """Gathers the members that queries see, and records their use for "least_attended".

    Args:
        stored: the memory.
        query_clusters: int `[batch, heads, probes, length]`, the clusters of each query.
        logits, places: `[batch, heads, probes, length, count]`; see `best_members`.
        is_query: bool, broadcastable to `[batch, heads, length]`, False for padding.

    Returns:
        A tuple of keys and values, `[batch, heads, length, probes * count, ...]`, and a bool mask
        of those that a query sees; and the updated memory.
    """
    batch, heads, num_clusters, members = sizes(stored["number"])
    sequences = tf.reshape(tf.range(batch * heads), [batch, heads, 1, 1])
    lists = sequences * num_clusters + query_clusters

    def join_probes(x):
        """`[batch, heads, probes, length, count]` to `[batch, heads, length, probes * count]`."""
        _, _, probes, length, count = sizes(x)
        x = tf.transpose(x, [0, 1, 3, 2, 4])
        return tf.reshape(x, [batch, heads, length, probes * count])

    places = join_probes(lists[..., None] * members + places)
    logits = join_probes(logits)
    visible = logits > MASKED / 2
    count = batch * heads * num_clusters * members
    # [batch * heads * clusters * members, ...]
    flat = {
        name: tf.reshape(x, [count, *sizes(x)[4:]])
        for name, x in stored.items()
        if name != "counts"
    }
    chosen = tf.gather(flat["key"], places), tf.gather(flat["value"], places), visible
    if "attention" not in stored:
        return chosen, stored
    weights = tf.where(visible, tf.cast(tf.nn.softmax(logits), tf.float32), 0.0)
    is_query = tf.cast(tf.broadcast_to(is_query, sizes(logits)[:3]), tf.float32)
    weights *= is_query[..., None]
    attention = tf.tensor_scatter_nd_add(flat["attention"], places[..., None], weights)
    queries = tf.one_hot(query_clusters, num_clusters) * is_query[:, :, None, :, None]
    return chosen, {
        **stored,
        "attention": tf.reshape(attention, sizes(stored["attention"])),
        "queries": stored["queries"] + tf.reduce_sum(queries, axis=[2, 3])[..., None],
    }


def remember(stored, key, value, key_clusters, eviction):
    """Adds members to a memory, and evicts others from clusters that are full.

    Args:
        stored: the memory.
        key, value: `[batch, heads, length, ...]`, of at most `memory_length` positions.
        key_clusters: int `[batch, heads, length]`, their clusters; the number of clusters for none.
        eviction: see `rt_keras.ops.routing_memory.memory_chunk`.

    Returns:
        The updated memory.
    """
    num_clusters, memory_length = size(stored["key"], 2), size(stored["key"], 3)
    order, _, starts = sort_by_cluster(key_clusters[:, :, None], num_clusters)
    starts, ends = starts[..., :-2, None], starts[..., 1:-1, None]  # [batch, heads, clusters, 1]
    held = tf.reduce_sum(tf.cast(stored["number"] >= 0, tf.int32), axis=3, keepdims=True)
    gone = tf.maximum(held + ends - starts - memory_length, 0)
    ranking = _first_to_go(stored, eviction)

    def candidates(which):
        """Returns entries of the list of old members, in order of eviction, and then new ones."""
        old, new = tf.minimum(which, memory_length - 1), which - held
        if ranking is not None:
            # Reordered only if members are evicted. The order and the choice between equal members
            # therefore depend on the finished blocks, not on the chunks.
            old = tf.where(gone > 0, tf.gather(ranking, old, batch_dims=3), old)
        entry = tf.clip_by_value(new + starts, 0, size(order, 2) - 1)
        entry = tf.gather(order, entry, batch_dims=2)
        arrived = {
            "key": tf.gather(key, entry, batch_dims=2),
            "value": tf.gather(value, entry, batch_dims=2),
            "number": stored["counts"][..., None] + new,
            "attention": tf.zeros(tf.shape(which)),
            "queries": tf.zeros(tf.shape(which)),
        }

        def old_or_new(name):
            x = tf.gather(stored[name], old, batch_dims=3)
            is_old = tf.reshape(which < held, [*sizes(which), *[1] * (x.shape.rank - 4)])
            return tf.where(is_old, x, tf.cast(arrived[name], x.dtype))

        return {name: old_or_new(name) for name in stored if name != "counts"}

    slot = tf.range(memory_length)
    merges = eviction == "merged"
    after = candidates(slot + (tf.minimum(slot + 1, gone) if merges else gone))
    if merges:
        # The oldest members are averaged in pairs, any other with itself.
        others = candidates(slot + tf.minimum(slot, gone))
        for name in ("key", "value"):
            after[name] = (after[name] + others[name]) / 2
    after["number"] = tf.where(slot < held + ends - starts - gone, after["number"], -1)
    return {**after, "counts": stored["counts"] + (ends - starts)[..., 0]}


def _first_to_go(stored, eviction):
    """Returns the slots of a memory in order of eviction, with empty ones last.

    Returns:
        int `[batch, heads, clusters, memory_length]`; or None if they are in order already.
    """
    if eviction in ("oldest", "merged"):
        return None
    if eviction == "random":
        value = _mixed(stored["number"], stored["counts"][..., None])
    else:
        # Members that no query could attend to yet are kept.
        rate = stored["attention"] / tf.maximum(stored["queries"], 1)
        value = tf.where(stored["queries"] > 0, rate, 1e30)
    value = tf.where(stored["number"] >= 0, value, value.dtype.max)
    return tf.argsort(value, axis=-1)


def _mixed(number, counts):
    """Returns pseudorandom non-negative float32 numbers, determined by the arguments."""
    x = tf.cast(number, tf.uint32) * 2654435761 + tf.cast(counts, tf.uint32) * 2246822519
    x = mix(x, ((15, 2246822519), (13, 3266489917)))
    return tf.cast(tf.bitwise.right_shift(x, tf.constant(8, tf.uint32)), tf.float32)
