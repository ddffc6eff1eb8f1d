"""What heads with any options compute, in NumPy: the naive versions of the ops, composed."""

import numpy as np

from rt_keras.ops import hamming_groups
from rt_keras.ops.balanced import naive_balanced_attention
from rt_keras.ops.causal_clustered import naive_causal_clustered_attention
from rt_keras.ops.clustered import naive_clustered_attention
from rt_keras.ops.convolution import naive_convolution
from rt_keras.ops.full import naive_full_attention
from rt_keras.ops.gated_delta import naive_gated_delta_rule
from rt_keras.ops.local.windows import naive_local_attention
from rt_keras.ops.lsh import naive_lsh_attention
from rt_keras.ops.naive import naive_logits, naive_mask, naive_normalize, naive_softmax
from rt_keras.ops.nearest.attention import (
    naive_clusters,
    naive_nearest_attention,
    naive_nearest_keys,
)
from rt_keras.ops.random import naive_random_attention
from rt_keras.ops.routing_memory import naive_memory
from rt_keras.ops.strided import naive_strided_attention


def expected(kind, group, query, value, key, *, causal, gates=None, mask=None):
    """What a head group gives, `[batch, heads, queries, value_depth]`; None if no loop tells.

    Args:
        kind: name of the kind of heads.
        group: a built head group of float64.
        query, value, key: float64 arrays, as the group is called with them.
        causal: bool.
        gates: float64 array, for a group with gates.
        mask: bool `[batch, length]`, False for padding at the right, of queries and keys; or None.
    """
    loop = LOOPS.get(kind)
    key, value = (x if x is None else of_each_head(x, group.num_heads) for x in (key, value))
    options = {"causal": causal, "query_mask": mask, "key_mask": mask}
    key = key if key is not None else query
    positions = of(group, "positions").get("positions")
    if positions is not None:
        # What positions of Transformer-XL are made of has tests of its own.
        options["relative_embeddings"] = np.asarray(positions.table())
        near_vectors = [np.asarray(x) for x in positions.place(query, key)]
        if loop in (local_routing, routing_memory):
            # Clusters know no positions.
            options["near_vectors"] = near_vectors
        else:
            query, key = near_vectors
    key = None if group.share_qk else key
    if loop is None:
        return None
    if gates is not None:
        options["gates"] = gates
    found = loop(group, query, key, value, options)
    if mask is None or found is None:
        return found
    return np.where(np.asarray(mask)[:, None, :, None], found, 0.0)


def of_each_head(x, heads):
    return np.repeat(x, heads // x.shape[1], axis=1)


def option(group, name):
    """The value of an option: an attribute of a group or of one of its sets of keys."""
    holders = [*getattr(group, "key_sets", ()), group]
    values = [getattr(holder, name) for holder in holders if hasattr(holder, name)]
    return array(next((x for x in values if x is not None), None))


def of(group, *names):
    """Arguments of a loop that are options of a group or of its sets; weights as arrays."""
    return {name: option(group, name) for name in names}


def array(x):
    return np.asarray(x) if hasattr(x, "shape") and x is not None else x


def full(group, query, key, value, options):
    if option(group, "memory_length") is None:
        return naive_full_attention(query, key, value, **options)
    window = {"block_size": query.shape[2], "sliding_window": option(group, "memory_length")}
    return naive_local_attention(query, key, value, **window, **options)


def local(group, query, key, value, options):
    sizes = of(group, "block_size", "look_back", "grid", "key_block_size", "sliding_window")
    return naive_local_attention(query, key, value, **sizes, **options)


def strided(group, query, key, value, options):
    return naive_strided_attention(query, key, value, stride=option(group, "stride"), **options)


def random(group, query, key, value, options):
    seeds = [(option(group, "seed"), head) for head in range(group.num_heads)]
    sizes = of(group, "num_clusters", "window_size")
    return naive_random_attention(query, key, value, routing_seed=seeds, **sizes, **options)


def lsh(group, query, key, value, options):
    sizes = of(group, "rotations", "block_size")
    return naive_lsh_attention(query, key, value, **sizes, **options)


def clustered(group, query, key, value, options):
    groups = hamming_groups(
        query, **of(group, "projections", "num_clusters", "iterations"), mask=options["query_mask"]
    )
    sizes = of(group, "num_clusters", "top_k")
    return naive_clustered_attention(
        query, key, value, groups=np.asarray(groups), **sizes, **options
    )


def learnt_by_clusters(group):
    """Returns the centroids and load biases of each query head."""
    found = {name: array(getattr(group.centroids, name)) for name in ("centroids", "load_bias")}
    return {name: np.repeat(x, group.num_heads // len(x), axis=0) for name, x in found.items()}


def routing(group, query, key, value, options):
    if option(group, "assignment") == "balanced":
        centroids, sizes = array(group.centroids.centroids), of(group, "window_size")
        return naive_balanced_attention(query, key, value, centroids=centroids, **sizes, **options)
    sizes = of(group, "window_size", "num_probes", "use_query_key_norm")
    return naive_nearest_attention(
        query, key, value, **learnt_by_clusters(group), **sizes, **options
    )


def persistent_keys(group, query, key, value, options):
    query, key = compared(group, query, query if key is None else key)
    keys, values = option(group, "persistent_keys"), option(group, "persistent_values")
    logits = query @ keys.swapaxes(1, 2) / np.sqrt(query.shape[3])
    routed = naive_logits(query, key, options.get("relative_embeddings"))
    return one_softmax(
        (routed, routed_keys(group, query, key, options), value), (logits, logits > -np.inf, values)
    )


def compared(group, *vectors):
    """Vectors as logits use them: normalized if the group does that."""
    return map(naive_normalize, vectors) if option(group, "use_query_key_norm") else vectors


def routed_keys(group, query, key, options, shift=0, window=None):
    """The keys that each query sees in its clusters, bool `[batch, heads, length, length]`."""
    learnt, length = learnt_by_clusters(group), query.shape[2]
    query_mask, key_mask = options["query_mask"], options["key_mask"]
    query_clusters, key_clusters = (naive_clusters(x, **learnt) for x in (query, key))
    clusters = query_clusters[..., : option(group, "num_probes")], key_clusters[..., 0]
    if key_mask is not None:
        clusters = clusters[0], np.where(key_mask[:, None], clusters[1], -1)
    sizes = option(group, "window_size"), options["causal"], shift, window
    masks = {"query_mask": query_mask, "key_mask": key_mask}
    return naive_nearest_keys(*clusters, *sizes) & naive_mask(length, length, **masks)


def one_softmax(*sets):
    """Attention to several sets of keys: their logits, who sees them, and their values."""
    logits = np.concatenate([x for x, _, _ in sets], axis=-1)
    visible = [np.broadcast_to(seen, x.shape) for x, seen, _ in sets]
    weights = naive_softmax(logits, np.concatenate(visible, axis=-1))
    ends = np.cumsum([x.shape[-1] for x, _, _ in sets])[:-1]
    return sum(part @ x for part, (_, _, x) in zip(np.split(weights, ends, axis=-1), sets))


def local_routing(group, query, key, value, options, memory=()):
    """One softmax over the window of a query, by its own logits, and members of its clusters."""
    key, length = query if group.share_qk else key, query.shape[2]
    # The queries and keys of the window's logits, where relative positions give them another depth.
    near_query, near_key = options.get("near_vectors", (query, key))
    shifts = option(group, "routed_key") == "previous_query"
    kernel = option(group, "routed_kernel")
    query = query if kernel is None else naive_convolution(query, kernel, options["query_mask"])
    key = query if shifts else key
    window = option(group, "block_size"), option(group, "look_back")
    beyond = routed_keys(group, query, key, options, int(shifts), None if shifts else window)
    block = np.arange(length) // window[0]
    masks = {name: options[name] for name in ("causal", "query_mask", "key_mask")}
    near = abs(block[:, None] - block) <= window[1]
    near = near & naive_mask(length, length, **masks)
    scale, bias = (option(group, x)[:, None, None] for x in ("routed_scale", "routed_bias"))
    query, key = compared(group, query, key)
    far_logits = scale * naive_logits(query, np.roll(key, shifts, 2)) + bias
    near_logits = naive_logits(near_query, near_key, options.get("relative_embeddings"))
    sets = (near_logits, near, value), (far_logits, beyond, value)
    return one_softmax(*sets, *memory)


def routing_memory(group, query, key, value, options):
    if option(group, "eviction") == "random":
        # The op's own test chooses the evicted members.
        return None
    kernel = option(group, "routed_kernel")
    routed = query if kernel is None else naive_convolution(query, kernel)
    keys = np.pad(routed, [(0, 0), (0, 0), (1, 0), (0, 0)])[:, :, :-1]
    learnt = {**learnt_by_clusters(group), "scale": option(group, "routed_scale")}
    sizes = of(group, "window_size", "memory_length", "memory_keys", "eviction", "num_probes")
    sizes |= of(group, "use_query_key_norm") | {"block_size": option(group, "memory_block_size")}
    # Each member that a query sees has a column of its own.
    most = query.shape[2] * sizes["memory_keys"] * sizes["num_probes"]
    logits = np.full([*query.shape[:3], most], -np.inf)
    values = np.zeros([*query.shape[:2], most, value.shape[3]])
    for b, h in np.ndindex(query.shape[:2]):
        of_head = {name: x[h] for name, x in learnt.items()}
        vectors = routed[b, h], keys[b, h], value[b, h]
        end = 0
        for i, (found, members) in enumerate(
            naive_memory(*vectors, **of_head, **sizes, first=1)[0]
        ):
            if found and (options["query_mask"] is None or options["query_mask"][b, i]):
                start, end = end, end + len(found)
                logits[b, h, i, start:end] = found + option(group, "routed_bias")[h]
                values[b, h, start:end] = members
    memory = [(logits, logits > -np.inf, values)]
    return local_routing(group, query, key, value, options, memory)


def causal_clustered(group, query, key, value, options):
    learnt = learnt_by_clusters(group)
    options = {name: x for name, x in options.items() if name != "causal"}
    return naive_causal_clustered_attention(
        query, key, value, **learnt, block_size=option(group, "block_size"), **options
    )


def gated_delta(group, query, key, value, options):
    gates, vectors = options["gates"], {}
    masks = {name: options["key_mask"] for name in ("key", "value")}
    masks["query"] = options["query_mask"]
    for name, x in (("query", query), ("key", key), ("value", value)):
        if option(group, "kernel_size") > 1:
            x = naive_convolution(x, array(getattr(group, f"{name}_kernel")), masks[name])
        vectors[name] = x * sigmoid(x)
    for name in ("query", "key"):
        x = vectors[name]
        vectors[name] = x / np.sqrt((x**2).sum(-1, keepdims=True) + 1e-6)
    vectors["query"] /= np.sqrt(query.shape[3])
    steps = np.log1p(np.exp(gates[..., 0] + option(group, "dt_bias")[:, None]))
    found = naive_gated_delta_rule(
        **vectors,
        log_decay=-np.exp(option(group, "a_log"))[:, None] * steps,
        beta=sigmoid(gates[..., 1]),
        key_mask=options["key_mask"],
    )
    scale = option(group, "output_scale") / np.sqrt((found**2).mean(-1, keepdims=True) + 1e-5)
    return found * scale * gates[..., 2:] * sigmoid(gates[..., 2:])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


LOOPS = {
    "FullHeads": full,
    "LocalHeads": local,
    "StridedHeads": strided,
    "RandomHeads": random,
    "LSHHeads": lsh,
    "ClusteredHeads": clustered,
    "RoutingHeads": routing,
    "PersistentKeysHeads": persistent_keys,
    "LocalRoutingHeads": local_routing,
    "RoutingMemoryHeads": routing_memory,
    "CausalClusteredHeads": causal_clustered,
    "GatedDeltaHeads": gated_delta,
}
