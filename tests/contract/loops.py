"""What heads with any options compute, as NumPy loops: the composition of the loops of the ops."""

import numpy as np

from rt_keras.ops import hamming_groups
from rt_keras.ops.full import naive_full_attention
from rt_keras.ops.local.windows import naive_local_attention
from rt_keras.ops.strided import naive_strided_attention
from tests.ops import reference


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
    return reference.random(query, key, value, routing_seed=seeds, **sizes, **options)


def lsh(group, query, key, value, options):
    sizes = of(group, "rotations", "block_size")
    return reference.lsh(query, key, value, **sizes, **options)


def clustered(group, query, key, value, options):
    groups = hamming_groups(
        query, **of(group, "projections", "num_clusters", "iterations"), mask=options["query_mask"]
    )
    sizes = of(group, "num_clusters", "top_k")
    return reference.grouped(query, key, value, groups=np.asarray(groups), **sizes, **options)


def learnt_by_clusters(group):
    """Returns the centroids and load biases of each query head."""
    found = {name: array(getattr(group.centroids, name)) for name in ("centroids", "load_bias")}
    return {name: np.repeat(x, group.num_heads // len(x), axis=0) for name, x in found.items()}


def routing(group, query, key, value, options):
    if option(group, "assignment") == "balanced":
        centroids, sizes = array(group.centroids.centroids), of(group, "window_size")
        return reference.balanced(query, key, value, centroids=centroids, **sizes, **options)
    return reference.nearest(
        query,
        key,
        value,
        **learnt_by_clusters(group),
        **of(group, "window_size", "num_probes"),
        normalized=option(group, "use_query_key_norm"),
        **options,
    )


def persistent_keys(group, query, key, value, options):
    keys, values = option(group, "persistent_keys"), option(group, "persistent_values")
    asked = reference.normalize(query) if option(group, "use_query_key_norm") else query

    def more(b, h, i):
        return keys[h] @ asked[b, h, i] / np.sqrt(query.shape[3]), values[h]

    return reference.nearest(
        query,
        key,
        value,
        **learnt_by_clusters(group),
        **of(group, "window_size"),
        normalized=option(group, "use_query_key_norm"),
        more=more,
        **options,
    )


def local_routing(group, query, key, value, options):
    """One softmax over the window of a query, by its own logits, and members of its clusters."""
    key = query if group.share_qk else key
    query_mask, key_mask = options["query_mask"], options["key_mask"]
    # The queries and keys of the window's logits, where relative positions give them another depth.
    near_query, near_key = options.get("near_vectors", (query, key))
    shifts = option(group, "routed_key") == "previous_query"
    kernel = option(group, "routed_kernel")
    q = query if kernel is None else reference.convolved(query, kernel, query_mask)
    k, masks = q if shifts else key, (query_mask if shifts else key_mask, query_mask)
    of_keys, of_queries = reference.members_and_clusters(
        *map(reference.normalize, (q, k)),
        *learnt_by_clusters(group).values(),
        *masks,
        option(group, "num_probes"),
    )
    if option(group, "use_query_key_norm"):
        q, k = map(reference.normalize, (q, k))
    k = reference.shifted(k) if shifts else k
    scale, bias = option(group, "routed_scale"), option(group, "routed_bias")

    def near_and_far(b, h, i):
        """The keys of a query in its window, and those of its clusters."""
        if not reference.real(query_mask, b, i):
            return [], []
        block, length = i // option(group, "block_size"), query.shape[2]
        start = max(block - option(group, "look_back"), 0) * option(group, "block_size")
        end = min((block + option(group, "look_back") + 1) * option(group, "block_size"), length)
        end = i + 1 if options["causal"] else end
        before, far = option(group, "window_size") // (1 if options["causal"] else 2), []
        for c in of_queries(b, h, i):
            members = [j + shifts for j in of_keys(b, h, c)]
            ends = (i + 1, i + 1) if shifts else (start, end)
            far += [j for j in members if j < ends[0]][::-1][:before]
            if not options["causal"]:
                behind = [j for j in members if j >= ends[1]]
                behind = behind[: option(group, "window_size") - before]
                far += [j for j in behind if not shifts or i + 1 < j < length]
        near = range(start, end)
        return ([j for j in keys if reference.real(key_mask, b, j)] for keys in (near, far))

    def near(b, h, i):
        return list(near_and_far(b, h, i))[0]

    def beyond(b, h, i):
        _, far = near_and_far(b, h, i)
        logits = [scale[h] * q[b, h, i] @ k[b, h, j] / q.shape[3] ** 0.5 + bias[h] for j in far]
        if "more" not in options or not reference.real(query_mask, b, i):
            return logits, list(value[b, h, far])
        others, values = options["more"](b, h, i)
        return [*logits, *others], [*value[b, h, far], *values]

    table = options.get("relative_embeddings")
    return reference.attend_rows(near_query, near_key, value, near, table, beyond)


def routing_memory(group, query, key, value, options):
    if option(group, "eviction") == "random":
        # The op's own test chooses the evicted members.
        return None
    kernel = option(group, "routed_kernel")
    routed = query if kernel is None else reference.convolved(query, kernel)
    learnt = {**learnt_by_clusters(group), "scale": option(group, "routed_scale")}
    bias, seen = option(group, "routed_bias"), {}
    for b, h in np.ndindex(query.shape[:2]):
        seen[b, h], _ = reference.remembered(
            routed[b, h],
            reference.shifted(routed)[b, h],
            value[b, h],
            **{name: x[h] for name, x in learnt.items()},
            **of(group, "window_size", "memory_length", "memory_keys", "eviction", "num_probes"),
            block_size=option(group, "memory_block_size"),
            normalized=option(group, "use_query_key_norm"),
            first=1,
        )

    def more(b, h, i):
        logits, values = seen[b, h][i]
        return [logit + bias[h] for logit in logits], values

    return local_routing(group, query, key, value, {**options, "more": more})


def causal_clustered(group, query, key, value, options):
    learnt = learnt_by_clusters(group)
    options = without(options, "causal")
    return reference.causal_clustered(
        query, key, value, **learnt, block_size=option(group, "block_size"), **options
    )


def gated_delta(group, query, key, value, options):
    gates, vectors = options["gates"], {}
    masks = {name: options["key_mask"] for name in ("key", "value")}
    masks["query"] = options["query_mask"]
    for name, x in (("query", query), ("key", key), ("value", value)):
        if option(group, "kernel_size") > 1:
            x = reference.convolved(x, array(getattr(group, f"{name}_kernel")), masks[name])
        vectors[name] = x * sigmoid(x)
    for name in ("query", "key"):
        x = vectors[name]
        vectors[name] = x / np.sqrt((x**2).sum(-1, keepdims=True) + 1e-6)
    vectors["query"] /= np.sqrt(query.shape[3])
    steps = np.log1p(np.exp(gates[..., 0] + option(group, "dt_bias")[:, None]))
    found = reference.gated_delta(
        **vectors,
        log_decay=-np.exp(option(group, "a_log"))[:, None] * steps,
        beta=sigmoid(gates[..., 1]),
        key_mask=options["key_mask"],
    )
    scale = option(group, "output_scale") / np.sqrt((found**2).mean(-1, keepdims=True) + 1e-5)
    return found * scale * gates[..., 2:] * sigmoid(gates[..., 2:])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def without(options, *names):
    return {name: x for name, x in options.items() if name not in names}


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
