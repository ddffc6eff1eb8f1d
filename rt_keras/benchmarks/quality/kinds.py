"""The kinds of attention heads to compare.

A kind is a function of the number of heads and of `Sizes`. It returns the head groups of one block.
Attention is causal. Queries of all kinds see about the same number of keys on average. For this,
the window of a cluster is twice as long, since a query sees only the members before it, half of
them on average. Clusters cover the sequence once if there are length / (2 keys) of them. Windows
have learned relative positions and clusters have none, or else all kinds add the same sinusoidal
positions to the embeddings.

`balanced` chooses members from the whole sequence, so its scores may benefit from the future.
`random_members` draws members by position, independent of the tokens. This reveals nothing about
the future, but a query that is in no cluster sees nothing.

The kinds in `CONVOLVED` convolve queries, keys and values over 4 positions. Those in `FIRST` have
another kind of heads in the first block; `heads_of_block` combines both.
"""

import math
import random
from functools import partial
from typing import NamedTuple

import rt_keras

POSITIONS = ("relative", "sinusoidal")


class Sizes(NamedTuple):
    """Sizes that all kinds of heads share.

    Attributes:
        keys: int, average number of keys that a query sees.
        clusters: int, number of clusters that cover the sequence once.
        positions: string, one of `POSITIONS`. Defaults to "relative".
    """

    keys: int
    clusters: int
    positions: str = "relative"

    def distance(self, block_size):
        """Returns the maximum distance of a window's relative positions, or None without them."""
        return 2 * block_size - 1 if self.positions == "relative" else None


def full(heads, sizes):
    """Heads that see all positions up to the query."""
    distance = sizes.distance(block_size(sizes.keys))
    return [rt_keras.layers.FullHeads(heads, max_relative_distance=distance)]


def local(heads, sizes):
    """Heads that see the block of the query and the previous block."""
    size = block_size(sizes.keys)
    return [rt_keras.layers.LocalHeads(heads, size, max_relative_distance=sizes.distance(size))]


def local_and_routing(heads, sizes, num_probes=1, assignment="nearest"):
    """Local and routing heads, half of each. With more probes, clusters are smaller."""
    clusters, window = num_probes * sizes.clusters, 2 * sizes.keys // num_probes
    options = {"num_probes": num_probes, "assignment": assignment}
    group = rt_keras.layers.RoutingHeads(heads // 2, clusters, window, **options)
    return [*local(heads // 2, sizes), group]


def random_members(heads, sizes):
    """Local heads and heads whose clusters have random members, half of each."""
    clusters, window = sizes.clusters, 2 * sizes.keys
    group = rt_keras.layers.RandomHeads(heads // 2, clusters, window, seed=_seed_of_block())
    return [*local(heads // 2, sizes), group]


def local_routing(heads, sizes, num_probes=1, **options):
    """Heads that see half of the keys in a window and half in a cluster, without convolution."""
    own = _window_and_cluster(sizes, num_probes)
    own["window_size"] //= num_probes
    options = {**own, "kernel_size": 1, "num_probes": num_probes, **options}
    return [rt_keras.layers.LocalRoutingHeads(heads, **options)]


def dense(heads, sizes, selection, kernel_size=1):
    """`local_routing` with another selection of keys, in O(n²) time."""
    from rt_keras.benchmarks.quality.dense_heads import DenseHeads

    options = {"kernel_size": kernel_size, "selection": selection, "seed": _seed_of_block()}
    return [DenseHeads(heads, **_window_and_cluster(sizes), **options)]


def selected_blocks(heads, sizes, by_content):
    """Heads that see half of the keys in a window and half in the blocks with the best scores."""
    from rt_keras.layers.key_sets import SelectedBlocks, Window

    far = sizes.keys // 2
    # Segments, which are divided into blocks, are blocks of the window.
    segment = 2 ** round(math.log2(block_size(sizes.keys - far)))
    size = min(4, segment)
    window = Window(segment, max_relative_distance=sizes.distance(segment))
    options = {"segment_size": segment, "by_content": by_content}
    blocks = SelectedBlocks(size, num_blocks=max(1, far // size), **options)
    return [rt_keras.layers.Heads(heads, [window, blocks])]


def routed_blocks(heads, sizes):
    """Heads that see the keys of a window, and the previous queries in it and in the best blocks.

    A window and the previous queries in it are a quarter of the keys each, on average.
    """
    from rt_keras.layers.key_sets import RoutedBlocks, Window

    window = 2 ** round(math.log2(max(1, sizes.keys / 6)))
    size = max(1, window // 4)
    num_blocks = max(1, (sizes.keys - 3 * window) // size)
    near = Window(window, max_relative_distance=sizes.distance(window))
    blocks = RoutedBlocks(size, num_blocks=num_blocks, segment_size=window)
    return [rt_keras.layers.Heads(heads, [near, blocks])]


def routed_blocks_and_nearest(heads, sizes):
    """Heads that find what followed similar queries, and routing heads, which find similar keys."""
    routing = rt_keras.layers.RoutingHeads(heads // 2, sizes.clusters, 2 * sizes.keys)
    return [*routed_blocks(heads // 2, sizes), routing]


def moba(heads, sizes):
    """Heads of MoBA, which see their own block and the earlier blocks with the best mean keys."""
    from rt_keras.layers.key_sets import SelectedBlocks, Window

    size = 2 ** round(math.log2(max(2, sizes.keys / 6)))
    num_blocks = max(1, round(sizes.keys / size - 0.5))
    window = Window(size, look_back=0, max_relative_distance=sizes.distance(size))
    options = {"segment_size": size, "by_content": False, "deviation_weight": 0.0}
    blocks = SelectedBlocks(size, num_blocks=num_blocks, **options)
    return [rt_keras.layers.Heads(heads, [window, blocks])]


def gated_delta(heads, sizes):
    """Heads of Gated DeltaNet, which see no keys but a state of fixed size."""
    return [rt_keras.layers.GatedDeltaHeads(heads)]


def beside_gated_delta(heads, sizes, others):
    """Heads of another kind and heads of Gated DeltaNet, half of each."""
    return [*others(heads // 2, sizes), *gated_delta(heads // 2, sizes)]


KINDS = {
    "full": full,
    "local": local,
    "local_and_nearest": local_and_routing,
    # Two nearest clusters of half the size.
    "nearest_2_probes": partial(local_and_routing, num_probes=2),
    # The paper's algorithm: clusters pick their members.
    "balanced": partial(local_and_routing, assignment="balanced"),
    "random_members": random_members,
    # `local_and_nearest` with centroids frozen at their random initial values.
    "frozen_centroids": local_and_routing,
    "local_routing": local_routing,
    # `local_routing` with two nearest clusters of half the size.
    "local_routing_2_probes": partial(local_routing, num_probes=2),
    # Routes keys, not the queries of the previous positions.
    "local_routing_keys": partial(local_routing, routed_key="key"),
    # Convolves routed queries with the three before them, the default of the layer.
    "local_routing_convolution": partial(local_routing, kernel_size=4),
    # Convolution without routing: one cluster holds all positions.
    "local_routing_convolution_one_cluster": partial(local_routing, kernel_size=4, num_clusters=1),
    # `local_routing` with centroids frozen at their random initial values.
    "local_routing_frozen": local_routing,
    # One cluster holds all positions, so a query sees its last positions twice.
    "local_routing_one_cluster": partial(local_routing, num_clusters=1),
    # Blocks of 4 neighboring keys, and of 4 similar ones.
    "blocks": partial(selected_blocks, by_content=False),
    "content_blocks": partial(selected_blocks, by_content=True),
    # The best blocks of previous queries, as `local_routing_convolution` has those of a cluster.
    "routed_blocks": routed_blocks,
    # Half of the heads of each.
    "routed_blocks_and_nearest": routed_blocks_and_nearest,
    "moba": moba,
    # Rivals with a recurrent state; their gates and convolutions add weights.
    "gated_delta": gated_delta,
    "local_and_gated_delta": partial(beside_gated_delta, others=local),
    "routing_and_gated_delta": partial(
        beside_gated_delta, others=partial(local_routing, kernel_size=4)
    ),
    # All keys instead of a cluster's; random keys; the best keys, without and with convolution.
    "local_routing_all": partial(dense, selection="all"),
    "local_routing_random": partial(dense, selection="random"),
    "oracle": partial(dense, selection="best"),
    "oracle_convolution": partial(dense, selection="best", kernel_size=4),
    # Convolve queries, keys and values.
    "local_convolution": local,
    "full_convolution": full,
    "local_routing_qkv_convolution": local_routing,
    "local_routing_all_convolutions": partial(local_routing, kernel_size=4),
    # The first block is that of `local_convolution`.
    "local_convolution_below": partial(local_routing, kernel_size=4),
    # The first block is that of `local_routing_all_convolutions`.
    "local_routing_all_convolutions_below": partial(local_routing, kernel_size=4),
    # The first block is that of `local_routing_convolution`.
    "local_convolution_above": local,
    "full_convolution_above": full,
    # The first block is that of `gated_delta`.
    "gated_delta_below": local,
    "gated_delta_below_routing": partial(local_routing, kernel_size=4),
    "gated_delta_below_routed_blocks": routed_blocks,
}
FROZEN = ("frozen_centroids", "local_routing_frozen")
# The kinds of the first block, if the others have another one.
FIRST = {
    "local_convolution_below": "local_convolution",
    "local_routing_all_convolutions_below": "local_routing_all_convolutions",
    "local_convolution_above": "local_routing_convolution",
    "full_convolution_above": "local_convolution",
    "gated_delta_below": "gated_delta",
    "gated_delta_below_routing": "gated_delta",
    "gated_delta_below_routed_blocks": "gated_delta",
}
# Kinds with convolutions of queries, keys and values.
CONVOLVED = (
    "local_convolution",
    "full_convolution",
    "local_routing_qkv_convolution",
    "local_routing_all_convolutions",
    "local_convolution_above",
    "full_convolution_above",
)


def heads_of_block(kind, block):
    """Returns the heads of one block of a model, and its other options.

    Args:
        kind: string, a key of `KINDS`.
        block: int, index of the block.

    Returns:
        A function as in `KINDS`, and a dictionary of arguments of `TransformerBlock`.

    >>> [heads_of_block("local_convolution_below", block)[1] for block in range(3)]
    [{'conv_kernel_size': 4}, {}, {}]
    """
    if block == 0:
        kind = FIRST.get(kind, kind)
    return KINDS[kind], {"conv_kernel_size": 4} if kind in CONVOLVED else {}


def block_size(keys):
    """Returns the block size with which a local head sees `keys` keys on average.

    A query sees the previous block and, on average, half of its own block.

    Args:
        keys: int.

    Returns:
        int, 2 / 3 of `keys`.

    >>> block_size(96)
    64
    """
    return max(1, round(2 * keys / 3))


def reach(keys):
    """Returns the maximum distance that a local head sees."""
    return 2 * block_size(keys) - 1


def _window_and_cluster(sizes, num_probes=1):
    """Returns arguments of heads that see half of the keys in a window and half in a cluster.

    The clusters could hold twice the sequence: clusters are uneven, and related keys must not be
    truncated.
    """
    size = block_size(sizes.keys - sizes.keys // 2)
    return {
        "block_size": size,
        "num_clusters": 4 * num_probes * sizes.clusters,
        "window_size": sizes.keys,
        "max_relative_distance": sizes.distance(size),
    }


def _seed_of_block():
    """Returns a seed that differs between blocks and depends on the seed of the run."""
    return random.randrange(2**31)
