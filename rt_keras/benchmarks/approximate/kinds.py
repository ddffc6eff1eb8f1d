"""The kinds of heads that are put in the place of full attention.

A kind is a function of the number of heads, of the most keys that a query shall see, of the length
and of whether attention is causal; it returns head groups. Routing heads attend by the vectors as
they are, so that the model's logits stay what they were, and only routing normalises them.
"""

from functools import partial

import rt_keras


def full(heads, keys, length, causal):
    """Every key."""
    return [rt_keras.layers.FullHeads(heads)]


def clustered(heads, keys, length, causal, top_k=None):
    """Full attention of 25 groups of queries, and for each query the logits of its `top_k` keys."""
    return [rt_keras.layers.ClusteredHeads(heads, num_clusters=25, top_k=top_k)]


def lsh(heads, keys, length, causal, num_rounds):
    """The Reformer's buckets of some hashes; a query is its own key."""
    sizes = {"chunk_size": max(1, keys // 2), "num_rounds": num_rounds}
    return [rt_keras.layers.LSHHeads(heads, max(2, 2 * (length // keys)), **sizes)]


def local(heads, keys, length, causal):
    """The blocks around a query."""
    return [rt_keras.layers.LocalHeads(heads, _block_size(keys, causal))]


def balanced(heads, keys, length, causal):
    """Clusters that pick their members, the paper's algorithm."""
    count = max(1, length // keys)
    return [rt_keras.layers.RoutingHeads(heads, count, keys, assignment="balanced")]


def nearest(heads, keys, length, causal, num_probes=1):
    """The keys of the nearest clusters: with more of them, each is smaller."""
    sizes = _clusters_and_window(keys, length, num_probes)
    return [rt_keras.layers.RoutingHeads(heads, **sizes, normalize=False)]


def local_routing(heads, keys, length, causal):
    """Half of the keys around a query, and half in its four nearest clusters."""
    block_size = _block_size(keys // 2, causal)
    sizes = _clusters_and_window(keys - keys // 2, length, num_probes=4)
    options = {**sizes, "routed_key": "key", "normalize": False}
    return [rt_keras.layers.LocalRoutingHeads(heads, block_size, **options)]


KINDS = {
    "full": full,
    "clustered": clustered,
    "improved_clustered": partial(clustered, top_k=32),
    "lsh_1": partial(lsh, num_rounds=1),
    "lsh_4": partial(lsh, num_rounds=4),
    "local": local,
    "longformer": local,
    "balanced": balanced,
    "nearest": nearest,
    "nearest_2_probes": partial(nearest, num_probes=2),
    "nearest_8_probes": partial(nearest, num_probes=8),
    "nearest_global": partial(nearest, num_probes=2),
    "local_routing": local_routing,
    "local_routing_global": local_routing,
}
# Those with a global token: the first, which sees everything and which everything sees.
GLOBAL_TOKENS = dict.fromkeys(("longformer", "nearest_global", "local_routing_global"), 1)
# Those whose groups of queries know of no order.
NOT_CAUSAL = ("clustered", "improved_clustered")


def _block_size(keys, causal):
    """A query sees its block and the one before, and the one behind if not causal."""
    return max(1, keys // (2 if causal else 3))


def _clusters_and_window(keys, length, num_probes):
    """Arguments of heads that see at most so many keys in their nearest clusters.

    A window holds twice the keys of an average cluster: keys that one cuts off are lost, wherever
    they are, while a smaller cluster only needs another probe.
    """
    window_size = max(1, keys // num_probes)
    num_clusters = max(num_probes, 2 * length // window_size)
    return {"num_clusters": num_clusters, "window_size": window_size, "num_probes": num_probes}
