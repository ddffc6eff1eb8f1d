"""The kinds of attention heads to compare.

The functions below, of a number of heads and of `Sizes`, return the head groups of one block.
Attention is causal. Queries of all kinds see about the same number of keys on average. For this,
the window of a cluster is twice as long, since a query sees only the members before it, half of
them on average. Clusters cover the sequence once if there are length / (2 keys) of them. Windows
have learned relative positions and clusters have none, or else all kinds add the same sinusoidal
positions to the embeddings.
"""

import math
from collections.abc import Callable
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


def local_and_nearest(heads, sizes):
    """Local and routing heads, half of each."""
    routing = rt_keras.layers.RoutingHeads(heads // 2, sizes.clusters, 2 * sizes.keys)
    return [*local(heads // 2, sizes), routing]


def local_routing(heads, sizes, **options):
    """Heads that see half of the keys in a window and half in a cluster, without convolution.

    The clusters could hold twice the sequence: clusters are uneven, and related keys must not be
    truncated.
    """
    size = block_size(sizes.keys - sizes.keys // 2)
    options = {"num_clusters": 4 * sizes.clusters, "kernel_size": 1, **options}
    options |= {"window_size": sizes.keys, "max_relative_distance": sizes.distance(size)}
    return [rt_keras.layers.LocalRoutingHeads(heads, block_size=size, **options)]


def selected_blocks(heads, sizes, by_content):
    """Heads that see half of the keys in a window and half in the blocks with the best scores."""
    far = sizes.keys // 2
    # Segments, which are divided into blocks, are blocks of the window.
    segment = 2 ** round(math.log2(block_size(sizes.keys - far)))
    size = min(4, segment)
    window = rt_keras.layers.key_sets.Window(segment, max_relative_distance=sizes.distance(segment))
    options = {"num_blocks": max(1, far // size), "segment_size": segment, "by_content": by_content}
    blocks = rt_keras.layers.key_sets.SelectedBlocks(size, **options)
    return [rt_keras.layers.Heads(heads, [window, blocks])]


def routed_blocks(heads, sizes):
    """Heads that see the keys of a window, and the previous queries in it and in the best blocks.

    A window and the previous queries in it are a quarter of the keys each, on average.
    """
    window = 2 ** round(math.log2(max(1, sizes.keys / 6)))
    size = max(1, window // 4)
    num_blocks = max(1, (sizes.keys - 3 * window) // size)
    near = rt_keras.layers.key_sets.Window(window, max_relative_distance=sizes.distance(window))
    blocks = rt_keras.layers.key_sets.RoutedBlocks(size, num_blocks=num_blocks, segment_size=window)
    return [rt_keras.layers.Heads(heads, [near, blocks])]


def routed_blocks_and_nearest(heads, sizes):
    """Heads that find what followed similar queries, and routing heads, which find similar keys."""
    routing = rt_keras.layers.RoutingHeads(heads // 2, sizes.clusters, 2 * sizes.keys)
    return [*routed_blocks(heads // 2, sizes), routing]


def gated_delta(heads, sizes):
    """Heads of Gated DeltaNet, which see no keys but a state of fixed size."""
    return [rt_keras.layers.GatedDeltaHeads(heads)]


def local_and_gated_delta(heads, sizes):
    """Local heads and heads of Gated DeltaNet, half of each."""
    return [*local(heads // 2, sizes), *gated_delta(heads // 2, sizes)]


class Kind(NamedTuple):
    """A kind of attention heads in a model.

    Attributes:
        head_groups: function of the number of heads and of `Sizes`.
        convolved: bool, whether queries, keys and values are convolved over 4 positions. Defaults
            to False.
        first: the `Kind` of the first block, or None for the same. Defaults to None.
    """

    head_groups: Callable
    convolved: bool = False
    first: "Kind | None" = None


CONVOLVED_QUERY = partial(local_routing, kernel_size=4)
LOCAL_CONVOLUTION = Kind(local, convolved=True)
LOCAL_ROUTING_CONVOLUTION = Kind(CONVOLVED_QUERY, convolved=True)
# A rival with a recurrent state; its gates and convolutions add weights.
GATED_DELTA = Kind(gated_delta)
KINDS = {
    "full": Kind(full),
    "local": Kind(local),
    "local_and_nearest": Kind(local_and_nearest),
    "local_routing": Kind(local_routing),
    # Convolves routed queries with the three before them, the default of the layer.
    "local_routing_convolution": Kind(CONVOLVED_QUERY),
    # One cluster holds all positions, so a query sees its last positions twice.
    "local_routing_one_cluster": Kind(partial(local_routing, num_clusters=1)),
    "local_routing_convolution_one_cluster": Kind(partial(CONVOLVED_QUERY, num_clusters=1)),
    # Blocks of 4 neighboring keys, and of 4 similar ones.
    "blocks": Kind(partial(selected_blocks, by_content=False)),
    "content_blocks": Kind(partial(selected_blocks, by_content=True)),
    # The best blocks of previous queries, as `local_routing_convolution` has those of a cluster.
    "routed_blocks": Kind(routed_blocks),
    # Half of the heads of each.
    "routed_blocks_and_nearest": Kind(routed_blocks_and_nearest),
    "gated_delta": GATED_DELTA,
    "local_and_gated_delta": Kind(local_and_gated_delta),
    "local_convolution": LOCAL_CONVOLUTION,
    "full_convolution": Kind(full, convolved=True),
    "local_routing_all_convolutions": LOCAL_ROUTING_CONVOLUTION,
    # Another kind in the first block.
    "local_convolution_below": Kind(CONVOLVED_QUERY, first=LOCAL_CONVOLUTION),
    "local_routing_all_convolutions_below": Kind(CONVOLVED_QUERY, first=LOCAL_ROUTING_CONVOLUTION),
    "gated_delta_below": Kind(local, first=GATED_DELTA),
    "gated_delta_below_routing": Kind(CONVOLVED_QUERY, first=GATED_DELTA),
}


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
