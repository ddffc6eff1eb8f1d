"""Heads that see a window, the last keys of their cluster, and the best that it remembers."""

import keras

from rt_keras.layers.heads import Heads
from rt_keras.layers.key_sets import Cluster, Remembered, Window
from rt_keras.layers.local_routing_heads import WINDOW_ALONE


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingMemoryHeads(Heads):
    """`LocalRoutingHeads` whose clusters remember further back than a query sees.

    Under the same softmax a query also sees, of the `memory_length` members that its cluster
    remembers besides the last `window_size`, the `memory_keys` that fit it best. The clusters are
    the index of that memory: no query is compared with more than one cluster's. A model can carry
    it on from chunk to chunk of a text, and so find what it read a million tokens ago. For the
    equation see `rt_keras.ops.routing_memory.memory_chunk`.

    The memory changes when a block of `memory_block_size` positions ends, and no gradient passes
    through it. Each time costs a copy of the memory, so these blocks may well be longer than those
    of the window; what came since is in reach as one of the last `window_size` of a cluster.

    Args:
        num_heads: int, heads in the group.
        block_size: int, positions in a block of the window.
        num_clusters: int, centroids of each head.
        window_size: int, the most keys that a query sees among the last of a cluster.
        memory_length: int, members that a cluster remembers.
        memory_keys: int, the most of them that a query sees. Defaults to 32.
        eviction: string, what goes where there is no room: "oldest", the default, "random",
            "least_attended" or "merged"; see the op.
        memory_block_size: int, after how many positions members join the memory, at most
            `memory_length`. Defaults to None, for `block_size`.
        look_back: int, blocks before its own that a query sees; or a tuple with one for each
            dimension of `grid`. Defaults to 1.
        max_relative_distance: int, reach of the relative positions; None, the default, for none.
        relative_positions: "learned", the default, "sinusoidal" or "bucketed"; see
            `rt_keras.layers.key_sets.positioned.Positioned`.
        num_probes: int, in how many of its nearest clusters a query attends. Defaults to 1.
        normalize: bool, whether logits are of normalised vectors. Defaults to True.
        commitment_weight: float, weight of the commitment loss. Defaults to 1e-4.
        seed: int or None, seed of the initial centroids.
        kernel_size: int, over how many positions a routed query is convolved. Defaults to None, for
            4.
        share_qk: bool, whether queries are their own keys. Defaults to False.
        num_persistent_keys: int, keys and values that each head learns and every query sees; None,
            the default, for none. See `rt_keras.ops.persistent_attention`.
        dense_below: int, see `HeadGroup`; None, the default, for never.
        **kwargs: further keyword arguments of `LocalRoutingHeads`;
            `routed_key` must be "previous_query".

    Raises:
        ValueError: if a number is out of range, `memory_length` is below `memory_block_size`,
            `eviction` is unknown, an argument is given that these heads do not take, or heads are
            called without `use_causal_mask`.

    Source: ours; see the op.

    >>> heads = RoutingMemoryHeads(
    ...     2, block_size=8, num_clusters=4, window_size=4, memory_length=16, memory_keys=4
    ... )
    >>> x = keras.random.normal([1, 2, 40, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 40, 8])
    """

    declared = (Window, Cluster, Remembered)
    fixed = {**WINDOW_ALONE, "routed_key": "previous_query"}
    can_share_qk = True
