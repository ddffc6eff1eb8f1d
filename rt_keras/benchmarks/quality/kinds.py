"""The kinds of attention heads that are compared.

A kind is a function of the number of heads, of the keys that a query of each shall see, of the
number of clusters and of the length of the sequences; it returns the head groups of one block.
Attention is causal. So that a query sees about as many keys on average, whatever the kind, a window
has twice as many: a query has seen half of the members of its cluster, on average. Clusters share
out the sequence if there are length / (2 keys) of them. Windows have relative positions; clusters
have none.

`balanced` and `hashed` choose members by looking at the whole sequence, so what they score may owe
something to the future. `random_members` draws its members by position, whatever the tokens are;
that tells nothing of the future, but a query that is in no cluster sees nothing.
"""

import random


def full(heads, keys, clusters, length):
    """Heads that see everything up to a query."""
    from rt_keras.layers import FullHeads

    return [FullHeads(heads, max_relative_distance=reach(keys))]


def local(heads, keys, clusters, length):
    """Heads that see the block of a query and the one before it."""
    from rt_keras.layers import LocalHeads

    return [LocalHeads(heads, block_size(keys), max_relative_distance=reach(keys))]


def local_and_nearest(heads, keys, clusters, length):
    """As many local heads as heads that see their nearest cluster."""
    return _half_local(heads, keys, _routing(heads, clusters, 2 * keys))


def nearest_2_probes(heads, keys, clusters, length):
    """The same with two nearest clusters, half as large."""
    return _half_local(heads, keys, _routing(heads, 2 * clusters, keys, num_probes=2))


def balanced(heads, keys, clusters, length):
    """As many local heads as heads whose clusters pick their members, the paper's algorithm."""
    return _half_local(heads, keys, _routing(heads, clusters, 2 * keys, assignment="balanced"))


def hashed(heads, keys, clusters, length):
    """As many local heads as heads that see their bucket of a hash."""
    from rt_keras.layers import HashedHeads

    return _half_local(heads, keys, HashedHeads(heads // 2, max(clusters, 2), 2 * keys))


def random_members(heads, keys, clusters, length):
    """As many local heads as heads whose clusters have random members."""
    from rt_keras.layers import RandomHeads

    group = RandomHeads(heads // 2, clusters, 2 * keys, seed=_seed_of_block())
    return _half_local(heads, keys, group)


def local_routing(heads, keys, clusters, length):
    """Heads that see half of the keys around them, and half in their cluster; not convolved."""
    return _local_routing(heads, _window_and_cluster(keys, clusters))


def local_routing_2_probes(heads, keys, clusters, length):
    """The same with two nearest clusters, half as large."""
    arguments = _window_and_cluster(keys, 2 * clusters)
    arguments["window_size"] //= 2
    return _local_routing(heads, arguments, num_probes=2)


def local_routing_keys(heads, keys, clusters, length):
    """`local_routing` that routes keys, not the queries of the positions before."""
    return _local_routing(heads, _window_and_cluster(keys, clusters), routed_key="key")


def local_routing_one_cluster(heads, keys, clusters, length):
    """`local_routing` whose one cluster holds everything: a query sees its last positions twice."""
    return _local_routing(heads, {**_window_and_cluster(keys, clusters), "num_clusters": 1})


def local_routing_convolution(heads, keys, clusters, length):
    """`local_routing` whose routed queries are convolved with the three before them: the default of
    the layer."""
    return _local_routing(heads, _window_and_cluster(keys, clusters), kernel_size=4)


def local_routing_convolution_one_cluster(heads, keys, clusters, length):
    """`local_routing_convolution` whose one cluster holds everything: convolved without routing."""
    arguments = {**_window_and_cluster(keys, clusters), "num_clusters": 1}
    return _local_routing(heads, arguments, kernel_size=4)


def local_routing_all(heads, keys, clusters, length):
    """`local_routing` with all keys instead of a cluster's; time is O(n²)."""
    return _dense(heads, keys, clusters, "all")


def local_routing_random(heads, keys, clusters, length):
    """`local_routing` with keys drawn at random instead of a cluster's; time is O(n²)."""
    return _dense(heads, keys, clusters, "random")


def oracle(heads, keys, clusters, length):
    """`local_routing` with the best keys instead of a cluster's; time is O(n²)."""
    return _dense(heads, keys, clusters, "best")


def oracle_convolution(heads, keys, clusters, length):
    """`local_routing_convolution` with the best keys instead of a cluster's; time is O(n²)."""
    return _dense(heads, keys, clusters, "best", kernel_size=4)


KINDS = {
    "full": full,
    "local": local,
    "local_and_nearest": local_and_nearest,
    "nearest_2_probes": nearest_2_probes,
    "balanced": balanced,
    "hashed": hashed,
    "random_members": random_members,
    "frozen_centroids": local_and_nearest,
    "local_routing": local_routing,
    "local_routing_2_probes": local_routing_2_probes,
    "local_routing_keys": local_routing_keys,
    "local_routing_convolution": local_routing_convolution,
    "local_routing_convolution_one_cluster": local_routing_convolution_one_cluster,
    "local_routing_frozen": local_routing,
    "local_routing_one_cluster": local_routing_one_cluster,
    "local_routing_all": local_routing_all,
    "local_routing_random": local_routing_random,
    "oracle": oracle,
    "oracle_convolution": oracle_convolution,
}
# `local_and_nearest` and `local_routing` whose centroids stay where they started, at random.
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


def _routing(heads, clusters, window_size, **options):
    from rt_keras.layers import RoutingHeads

    return RoutingHeads(heads // 2, clusters, window_size, **options)


def _half_local(heads, keys, group):
    return [*local(heads // 2, keys, None, None), group]


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


def _local_routing(heads, arguments, kernel_size=1, **options):
    from rt_keras.layers import LocalRoutingHeads

    return [LocalRoutingHeads(heads, **arguments, kernel_size=kernel_size, **options)]


def _dense(heads, keys, clusters, selection, kernel_size=1):
    from rt_keras.benchmarks.quality.dense_heads import DenseHeads

    options = {"kernel_size": kernel_size, "selection": selection, "seed": _seed_of_block()}
    return [DenseHeads(heads, **_window_and_cluster(keys, clusters), **options)]


def _seed_of_block():
    """A seed that differs from block to block; they come from the seed of the run."""
    return random.randrange(2**31)
