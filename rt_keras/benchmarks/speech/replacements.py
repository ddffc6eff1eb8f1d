"""The kinds of heads that replace full attention.

A kind is a function of the number of heads, the maximum number of keys per query, the length, and
whether attention is causal. It returns head groups. Routing heads attend with unnormalized queries
and keys, so the model's logits do not change; only routing normalizes them.
"""

from functools import partial

import rt_keras


def clustered(heads, keys, length, causal, top_k=None, num_clusters=25):
    """Attention of groups of queries, and exact logits of the `top_k` keys of each query."""
    return [rt_keras.layers.ClusteredHeads(heads, num_clusters=num_clusters, top_k=top_k)]


def lsh(heads, keys, length, causal, num_rounds):
    """The Reformer's hash buckets, with shared queries and keys."""
    sizes = {"block_size": max(1, keys // 2), "num_rounds": num_rounds}
    return [rt_keras.layers.LSHHeads(heads, max(2, 2 * (length // keys)), **sizes)]


def local(heads, keys, length, causal):
    """Local attention to the blocks around a query."""
    return [rt_keras.layers.LocalHeads(heads, _block_size(keys, causal))]


def nearest(heads, keys, length, causal, num_probes=1):
    """The keys of the nearest clusters, which are smaller with more probes."""
    sizes = _clusters_and_window(keys, length, num_probes)
    return [rt_keras.layers.RoutingHeads(heads, **sizes, use_query_key_norm=False)]


def local_routing(heads, keys, length, causal):
    """A window for half of the keys, and the four nearest clusters for the other half."""
    block_size = _block_size(keys // 2, causal)
    sizes = _clusters_and_window(keys - keys // 2, length, num_probes=4)
    options = {**sizes, "routed_key": "key", "use_query_key_norm": False}
    return [rt_keras.layers.LocalRoutingHeads(heads, block_size, **options)]


KINDS = {
    "lsh_1": partial(lsh, num_rounds=1),
    "lsh_4": partial(lsh, num_rounds=4),
    "local": local,
    "nearest_2_probes": partial(nearest, num_probes=2),
    "local_routing": local_routing,
}


def _block_size(keys, causal):
    """Returns the block size: a query sees its block, the previous and, if not causal, the next."""
    return max(1, keys // (2 if causal else 3))


def _clusters_and_window(keys, length, num_probes):
    """Returns arguments of heads that see at most `keys` keys in their nearest clusters.

    A window holds twice the keys of an average cluster: truncated keys are lost, wherever they are,
    while a smaller cluster only needs another probe.
    """
    window_size = max(1, keys // num_probes)
    num_clusters = max(num_probes, 2 * length // window_size)
    return {"num_clusters": num_clusters, "window_size": window_size, "num_probes": num_probes}
