"""The kinds of heads that are put in the place of full attention.

A kind is a function of the number of heads, of the most keys that a query shall see, of the length
and of whether attention is causal; it returns head groups. Routing heads attend by the vectors as
they are, so that the model's logits stay what they were, and only routing normalises them.
"""


def full(heads, keys, length, causal):
    """Every key."""
    from rt_keras import layers

    return [layers.FullHeads(heads)]


def clustered(heads, keys, length, causal):
    """Full attention of 25 groups of queries."""
    from rt_keras import layers

    return [layers.ClusteredHeads(heads, num_clusters=25)]


def improved_clustered(heads, keys, length, causal):
    """The same, and for each query the logits of its group's 32 best keys."""
    from rt_keras import layers

    return [layers.ClusteredHeads(heads, num_clusters=25, top_k=32)]


def lsh_1(heads, keys, length, causal):
    """The Reformer's buckets of one hash; a query is its own key."""
    return [_lsh(heads, keys, length, num_rounds=1)]


def lsh_4(heads, keys, length, causal):
    """The same with four hashes, and so up to four times the keys."""
    return [_lsh(heads, keys, length, num_rounds=4)]


def local(heads, keys, length, causal):
    """The blocks around a query."""
    from rt_keras import layers

    return [layers.LocalHeads(heads, _block_size(keys, causal))]


def longformer(heads, keys, length, causal):
    """The same, and the first token, which sees everything and which everything sees."""
    return local(heads, keys, length, causal)


def balanced(heads, keys, length, causal):
    """Clusters that pick their members, the paper's algorithm."""
    from rt_keras import layers

    count = max(1, length // keys)
    return [layers.RoutingHeads(heads, count, keys, assignment="balanced")]


def nearest(heads, keys, length, causal):
    """The keys of the nearest cluster."""
    return _nearest(heads, keys, length, num_probes=1)


def nearest_2_probes(heads, keys, length, causal):
    """The keys of the two nearest clusters, twice as many and half as large."""
    return _nearest(heads, keys, length, num_probes=2)


def nearest_8_probes(heads, keys, length, causal):
    """The keys of the eight nearest clusters."""
    return _nearest(heads, keys, length, num_probes=8)


def nearest_global(heads, keys, length, causal):
    """The keys of the two nearest clusters, and the first token, as `longformer`."""
    return _nearest(heads, keys, length, num_probes=2)


def local_routing(heads, keys, length, causal):
    """Half of the keys around a query, and half in its four nearest clusters."""
    from rt_keras import layers

    block_size = _block_size(keys // 2, causal)
    routing = _clusters_and_window(keys - keys // 2, length, num_probes=4)
    arguments = {**routing, "routed_key": "key", "normalize": False}
    return [layers.LocalRoutingHeads(heads, block_size, **arguments)]


def local_routing_global(heads, keys, length, causal):
    """The same, and the first token, as `longformer`."""
    return local_routing(heads, keys, length, causal)


KINDS = {
    "full": full,
    "clustered": clustered,
    "improved_clustered": improved_clustered,
    "lsh_1": lsh_1,
    "lsh_4": lsh_4,
    "local": local,
    "longformer": longformer,
    "balanced": balanced,
    "nearest": nearest,
    "nearest_2_probes": nearest_2_probes,
    "nearest_8_probes": nearest_8_probes,
    "nearest_global": nearest_global,
    "local_routing": local_routing,
    "local_routing_global": local_routing_global,
}
# Those with a global token.
GLOBAL_TOKENS = dict.fromkeys(("longformer", "nearest_global", "local_routing_global"), 1)
# Those whose groups of queries know of no order.
NOT_CAUSAL = ("clustered", "improved_clustered")


def _block_size(keys, causal):
    """A query sees its block and the one before, and the one behind if not causal."""
    return max(1, keys // (2 if causal else 3))


def _nearest(heads, keys, length, num_probes):
    from rt_keras import layers

    routing = _clusters_and_window(keys, length, num_probes)
    return [layers.RoutingHeads(heads, **routing, normalize=False)]


def _clusters_and_window(keys, length, num_probes):
    """Arguments of heads that see at most so many keys in their nearest clusters.

    A window holds twice the keys of an average cluster: keys that one cuts off are lost, wherever
    they are, while a smaller cluster only needs another probe.
    """
    window_size = max(1, keys // num_probes)
    num_clusters = max(num_probes, 2 * length // window_size)
    return {"num_clusters": num_clusters, "window_size": window_size, "num_probes": num_probes}


def _lsh(heads, keys, length, num_rounds):
    from rt_keras import layers

    buckets = max(2, 2 * (length // keys))
    return layers.LSHHeads(heads, buckets, chunk_size=max(1, keys // 2), num_rounds=num_rounds)
