"""The kinds of attention heads to compare.

A kind is a function of the number of heads and of `Sizes`. It returns the head groups of one block.
Attention is causal. Queries of all kinds see about the same number of keys on average. For this,
the window of a cluster is twice as long, since a query sees only the members before it, half of
them on average. Clusters cover the sequence once if there are length / (2 keys) of them. Windows
have learned relative positions and clusters have none, or else all kinds add the same sinusoidal
positions to the embeddings.

The kinds in `CONVOLVED` convolve queries, keys and values over 4 positions. Those in `FIRST` have
another kind of heads in the first block; `heads_of_block` combines both.
"""

import math
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
    own = {
        "block_size": size,
        "num_clusters": 4 * sizes.clusters,
        "window_size": sizes.keys,
        "max_relative_distance": sizes.distance(size),
        "kernel_size": 1,
    }
    return [rt_keras.layers.LocalRoutingHeads(heads, **{**own, **options})]


def selected_blocks(heads, sizes, by_content):
    """Heads that see half of the keys in a window and half in the blocks with the best scores."""
    far = sizes.keys // 2
    # Segments, which are divided into blocks, are blocks of the window.
    segment = 2 ** round(math.log2(block_size(sizes.keys - far)))
    size = min(4, segment)
    window = rt_keras.layers.key_sets.Window(segment, max_relative_distance=sizes.distance(segment))
    options = {"segment_size": segment, "by_content": by_content}
    blocks = rt_keras.layers.key_sets.SelectedBlocks(
        size, num_blocks=max(1, far // size), **options
    )
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


CONVOLVED_QUERY = partial(local_routing, kernel_size=4)
KINDS = {
    "full": full,
    "local": local,
    "local_and_nearest": local_and_nearest,
    "local_routing": local_routing,
    # Convolves routed queries with the three before them, the default of the layer.
    "local_routing_convolution": CONVOLVED_QUERY,
    # One cluster holds all positions, so a query sees its last positions twice.
    "local_routing_one_cluster": partial(local_routing, num_clusters=1),
    "local_routing_convolution_one_cluster": partial(CONVOLVED_QUERY, num_clusters=1),
    # Blocks of 4 neighboring keys, and of 4 similar ones.
    "blocks": partial(selected_blocks, by_content=False),
    "content_blocks": partial(selected_blocks, by_content=True),
    # The best blocks of previous queries, as `local_routing_convolution` has those of a cluster.
    "routed_blocks": routed_blocks,
    # Half of the heads of each.
    "routed_blocks_and_nearest": routed_blocks_and_nearest,
    # Rivals with a recurrent state; their gates and convolutions add weights.
    "gated_delta": gated_delta,
    "local_and_gated_delta": local_and_gated_delta,
    # Convolve queries, keys and values.
    "local_convolution": local,
    "full_convolution": full,
    "local_routing_all_convolutions": CONVOLVED_QUERY,
    # The first block is that of `FIRST`.
    "local_convolution_below": CONVOLVED_QUERY,
    "local_routing_all_convolutions_below": CONVOLVED_QUERY,
    "gated_delta_below": local,
    "gated_delta_below_routing": CONVOLVED_QUERY,
}
# The kinds of the first block, if the others have another one.
FIRST = {
    "local_convolution_below": "local_convolution",
    "local_routing_all_convolutions_below": "local_routing_all_convolutions",
    "gated_delta_below": "gated_delta",
    "gated_delta_below_routing": "gated_delta",
}
# Kinds with convolutions of queries, keys and values.
CONVOLVED = ("local_convolution", "full_convolution", "local_routing_all_convolutions")


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
