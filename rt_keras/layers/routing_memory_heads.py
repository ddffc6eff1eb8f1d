"""Heads that attend to a window, to the last keys of a cluster and to its memory."""

import keras

from rt_keras.layers.heads import Heads
from rt_keras.layers.key_sets import Cluster, Remembered, Window
from rt_keras.layers.local_routing_heads import WINDOW_ALONE


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingMemoryHeads(Heads):
    """`LocalRoutingHeads` whose clusters remember members from further back.

    Each cluster has a memory of `memory_length` members in addition to its last `window_size` ones.
    Under the same softmax, a query also attends to the `memory_keys` members with the highest
    logits in the memory of its cluster. The clusters are the index of the memory: a query is
    compared only with the members of its own cluster. A model can keep the memory as a recurrent
    state from chunk to chunk of a text, and so retrieve keys from a million tokens ago. See
    `rt_keras.ops.routing_memory.memory_chunk` for the equation.

    The memory changes when a block of `memory_block_size` positions ends, and no gradient passes
    through it. Each update copies the memory, so these blocks may be longer than those of the
    window. Newer members are available among the last `window_size` of a cluster.

    Args:
        num_heads: int, number of heads in the group.
        block_size: int, number of positions in a block of the window.
        num_clusters: int, number of centroids per head.
        window_size: int, maximum number of last members of its cluster that a query attends to.
        memory_length: int, number of members in the memory of a cluster.
        memory_keys: int, maximum number of these members that a query attends to. Defaults to 32.
        eviction: string, policy for a full memory: "oldest", "random", "least_attended" or
            "merged"; see the op. Defaults to "oldest".
        memory_block_size: int or None, number of positions between updates of the memory, at most
            `memory_length`. None for `block_size`. Defaults to None.
        look_back: int, number of preceding blocks that a query attends to. Defaults to 1.
        max_relative_distance: int or None, largest distance of the relative positions. None
            disables them. Defaults to None.
        relative_positions: string, "learned" or "sinusoidal"; see
            `rt_keras.layers.key_sets.positioned.Positioned`. Defaults to "learned".
        num_probes: int, number of nearest clusters that a query attends to. Defaults to 1.
        use_query_key_norm: bool, whether logits use normalized vectors. Defaults to True.
        commitment_weight: float, weight of the commitment loss. Defaults to 1e-4.
        seed: int or None, seed of the initial centroids. Defaults to None.
        kernel_size: int or None, number of positions that are convolved into a routed query. None
            for 4. Defaults to None.
        share_qk: bool, whether queries are also keys. Defaults to False.
        **kwargs: other keyword arguments of `LocalRoutingHeads`; `routed_key` must be
            "previous_query".

    Raises:
        ValueError: if a number is out of range, `memory_length` is below `memory_block_size`,
            `eviction` is unknown, an unsupported argument is given, or the heads are called without
            `use_causal_mask`.

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
