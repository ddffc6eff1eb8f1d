"""The kinds of attention heads that are compared.

A kind is a function of the number of heads, of the keys that a query of each shall see, and of the
number of clusters; it returns the head groups of one block. Attention is causal. So that a query
sees about as many keys on average, whatever the kind, a window has twice as many: a query has seen
half of the members of its cluster, on average. Clusters share out the sequence if there are
length / (2 keys) of them. Windows have relative positions; clusters have none.

`balanced` and `hashed` choose members by looking at the whole sequence, so what they score may owe
something to the future. `random_members` draws its members by position, whatever the tokens are;
that tells nothing of the future, but a query that is in no cluster sees nothing.
"""

import random
from functools import partial

import rt_keras


def full(heads, keys, clusters):
    """Heads that see everything up to a query."""
    return [rt_keras.layers.FullHeads(heads, max_relative_distance=reach(keys))]


def local(heads, keys, clusters):
    """Heads that see the block of a query and the one before it."""
    size = block_size(keys)
    return [rt_keras.layers.LocalHeads(heads, size, max_relative_distance=reach(keys))]


def local_and_routing(heads, keys, clusters, num_probes=1, assignment="nearest"):
    """As many local heads as heads that see their clusters, which are smaller with more probes."""
    sizes = num_probes * clusters, 2 * keys // num_probes
    options = {"num_probes": num_probes, "assignment": assignment}
    group = rt_keras.layers.RoutingHeads(heads // 2, *sizes, **options)
    return [*local(heads // 2, keys, clusters), group]


def hashed(heads, keys, clusters):
    """As many local heads as heads that see their bucket of a hash."""
    group = rt_keras.layers.HashedHeads(heads // 2, max(clusters, 2), 2 * keys)
    return [*local(heads // 2, keys, clusters), group]


def random_members(heads, keys, clusters):
    """As many local heads as heads whose clusters have random members."""
    group = rt_keras.layers.RandomHeads(heads // 2, clusters, 2 * keys, seed=_seed_of_block())
    return [*local(heads // 2, keys, clusters), group]


def local_routing(heads, keys, clusters, num_probes=1, **options):
    """Heads that see half of the keys around them, and half in their cluster; not convolved."""
    sizes = _window_and_cluster(keys, num_probes * clusters)
    sizes["window_size"] //= num_probes
    options = {**sizes, "kernel_size": 1, "num_probes": num_probes, **options}
    return [rt_keras.layers.LocalRoutingHeads(heads, **options)]


def dense(heads, keys, clusters, selection, kernel_size=1):
    """`local_routing` with keys that are selected otherwise; time is O(n²)."""
    from rt_keras.benchmarks.quality.dense_heads import DenseHeads

    options = {"kernel_size": kernel_size, "selection": selection, "seed": _seed_of_block()}
    return [DenseHeads(heads, **_window_and_cluster(keys, clusters), **options)]


KINDS = {
    "full": full,
    "local": local,
    "local_and_nearest": local_and_routing,
    # The same with two nearest clusters, half as large.
    "nearest_2_probes": partial(local_and_routing, num_probes=2),
    # The same with clusters that pick their members, the paper's algorithm.
    "balanced": partial(local_and_routing, assignment="balanced"),
    "hashed": hashed,
    "random_members": random_members,
    # `local_and_nearest` whose centroids stay where they started, at random.
    "frozen_centroids": local_and_routing,
    "local_routing": local_routing,
    # `local_routing` with two nearest clusters, half as large.
    "local_routing_2_probes": partial(local_routing, num_probes=2),
    # It routes keys, not the queries of the positions before.
    "local_routing_keys": partial(local_routing, routed_key="key"),
    # Its routed queries are convolved with the three before them: the default of the layer.
    "local_routing_convolution": partial(local_routing, kernel_size=4),
    # Convolved without routing: one cluster holds everything.
    "local_routing_convolution_one_cluster": partial(local_routing, kernel_size=4, num_clusters=1),
    # Its centroids stay where they started, at random.
    "local_routing_frozen": local_routing,
    # Its one cluster holds everything: a query sees its last positions twice.
    "local_routing_one_cluster": partial(local_routing, num_clusters=1),
    # All keys instead of a cluster's; random ones; the best ones, convolved or not.
    "local_routing_all": partial(dense, selection="all"),
    "local_routing_random": partial(dense, selection="random"),
    "oracle": partial(dense, selection="best"),
    "oracle_convolution": partial(dense, selection="best", kernel_size=4),
}
FROZEN = ("frozen_centroids", "local_routing_frozen")


def block_size(keys):
    """The block size with which a local head sees this many keys on average.

    A query sees its own block up to itself, half of it on average, and the block before it.

    Args:
        keys: int.

    Returns:
        int, 2 / 3 of it.

    >>> block_size(96)
    64
    """
    return max(1, round(2 * keys / 3))


def reach(keys):
    """How far back a local head sees at most."""
    return 2 * block_size(keys) - 1


def _window_and_cluster(keys, clusters):
    """Arguments of heads that see half of the keys in a window, and half in a cluster.

    There are clusters for twice the sequence: what matters is that keys which belong together are
    still in a window, and clusters are not even.
    """
    near = keys - keys // 2
    return {
        "block_size": block_size(near),
        "num_clusters": 4 * clusters,
        "window_size": keys,
        "max_relative_distance": reach(near),
    }


def _seed_of_block():
    """A seed that differs from block to block; they come from the seed of the run."""
    return random.randrange(2**31)
