"""The kinds of heads that are unions of sets of keys: functions that return `Heads`."""

from rt_keras.layers import key_sets
from rt_keras.layers.heads import Heads


def LocalHeads(
    num_heads,
    block_size,
    look_back=1,
    sliding_window=None,
    grid=None,
    key_block_size=None,
    max_relative_distance=None,
    relative_positions="learned",
    **kwargs,
):
    """Heads whose queries attend to their own block of positions and to the neighboring blocks.

    See `rt_keras.ops.local_attention` for the equation. The cost is O(n · block_size).

    Args:
        num_heads: int, number of heads in the group.
        block_size: int, number of positions in a block.
        look_back: int, number of preceding blocks that a query attends to, and of following blocks
            if attention is not causal; or a tuple with one number for each dimension of `grid`.
            Defaults to 1.
        max_relative_distance: int or None, largest distance of the relative positions. None
            disables them. The furthest key is block_size * (look_back + 1) - 1 positions away.
            Defaults to None.
        grid: tuple of ints or None, number of blocks along each dimension of an image whose
            positions are in the order of `rt_keras.ops.to_blocks`. None for sequences. Defaults to
            None.
        key_block_size: int or None, number of positions in a block of another sequence's keys. The
            sequence must have as many blocks as the queries. None if there are as many keys as
            queries. Defaults to None.
        sliding_window: int w or None. Queries attend only to keys less than w positions away, as in
            Longformer, Mistral and Gemma; at most `look_back` · `block_size` + 1. None for whole
            blocks. Defaults to None.
        relative_positions: string, "learned" or "sinusoidal"; see
            `rt_keras.layers.relative_positions.RelativePositions`. Defaults to "learned".
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Returns:
        `rt_keras.layers.Heads`.

    Raises:
        ValueError: if a size is not a positive integer, `look_back` is negative or has the wrong
            number of dimensions, or blocks are too small for the sliding window.

    Source: Roy et al. 2021, section 3.2; images: Parmar et al. 2018, section 3.1; sliding windows:
    Beltagy et al. 2020, section 3.1.

    >>> import keras
    >>> heads = LocalHeads(2, block_size=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """
    window = key_sets.Window(
        block_size,
        look_back,
        sliding_window,
        grid,
        key_block_size,
        max_relative_distance=max_relative_distance,
        relative_positions=relative_positions,
    )
    return Heads(num_heads, [window], **kwargs)


def FullHeads(
    num_heads,
    memory_length=None,
    max_relative_distance=None,
    relative_positions="learned",
    **kwargs,
):
    """Heads whose queries attend to every key, at a cost of O(n²).

    See `rt_keras.ops.full_attention` for the equation. This is the only head group that supports
    any `attention_mask`.

    With a `memory_length`, causal queries attend only to that many keys, up to their own. The cost
    is then O(n · memory_length), and a model can keep these keys as a recurrent state from chunk to
    chunk of a text, as Transformer-XL does. In Transformer-XL, queries at the end of a chunk attend
    to more keys than those at its start. Here the number is the same for all, so outputs do not
    depend on the length of the chunks.

    Args:
        num_heads: int, number of heads in the group.
        max_relative_distance: int or None, largest distance of the relative positions. None
            disables them. Defaults to None.
        memory_length: int or None, number of keys that a causal query attends to. None for all
            keys. Defaults to None.
        relative_positions: string, "learned" or "sinusoidal"; see
            `rt_keras.layers.relative_positions.RelativePositions`. Defaults to "learned".
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Returns:
        `rt_keras.layers.Heads`.

    Raises:
        ValueError: if `memory_length` is not a positive integer, or heads with a `memory_length`
            are called without `use_causal_mask`.

    Source: Vaswani et al. 2017, Attention Is All You Need, section 3.2; memory: Dai et al. 2019,
    Transformer-XL, section 3.2.

    >>> import keras
    >>> heads = FullHeads(2)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """
    positions = {
        "max_relative_distance": max_relative_distance,
        "relative_positions": relative_positions,
    }
    if memory_length is None:
        return Heads(num_heads, [key_sets.Everything(**positions)], **kwargs)
    return Heads(num_heads, [key_sets.LastKeys(memory_length, **positions)], **kwargs)


def StridedHeads(num_heads, stride, max_relative_distance=None, **kwargs):
    """Heads whose queries attend to the keys at multiples of a stride from them.

    See `rt_keras.ops.strided_attention` for the equation. The cost is O(n² / stride).

    Args:
        num_heads: int, number of heads in the group.
        stride: int, distance between keys, in positions.
        max_relative_distance: int or None, largest distance of the relative positions, in strides.
            None disables them. Defaults to None.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Returns:
        `rt_keras.layers.Heads`.

    Raises:
        ValueError: if a size is not a positive integer.

    Source: Child et al. 2019, Generating Long Sequences with Sparse Transformers, section 4.3.

    >>> import keras
    >>> heads = StridedHeads(2, stride=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """
    return Heads(num_heads, [key_sets.Strided(stride, max_relative_distance)], **kwargs)


def RoutingHeads(
    num_heads,
    num_clusters,
    window_size,
    num_probes=1,
    use_query_key_norm=True,
    commitment_weight=1e-4,
    seed=None,
    assignment="nearest",
    max_relative_distance=None,
    share_qk=False,
    **kwargs,
):
    """Heads whose queries attend to keys of their own cluster, found by online k-means.

    Queries and keys are layer-normalized over the depth and routed by their scores
    `centroid_c · x`. See `rt_keras.ops.nearest_attention` and `rt_keras.ops.balanced_attention` for
    the equations of the two assignments. With "nearest", output i depends only on positions up to
    i. With "balanced", the assignment of the paper, the routing depends on later positions, and so
    do the outputs even if attention is causal.

    See `rt_keras.layers.centroids.Centroids` for how centroids learn and for their weights.

    Args:
        num_heads: int, number of heads in the group.
        num_clusters: int, number of centroids per head. The cost is lowest with about sqrt(n).
        window_size: int, maximum number of members of its cluster that a query attends to.
        assignment: string, "nearest" or "balanced", the assignment of positions to clusters.
            Defaults to "nearest".
        share_qk: bool, whether queries are also keys, as in the paper for causal attention.
            Separate keys double the cost with "nearest" but improve recall a lot. Defaults to
            False.
        num_probes: int, number of nearest clusters that a query attends to, with "nearest".
            Defaults to 1.
        use_query_key_norm: bool, whether logits use normalized queries and keys, as in the paper.
            False, which requires "nearest", normalizes them only for routing, for models that were
            trained with full attention. Defaults to True.
        max_relative_distance: int or None, largest distance of the relative positions. None
            disables them. Defaults to None.
        commitment_weight: float β, weight of the commitment loss. Defaults to 1e-4.
        seed: int or None, seed of the initial centroids, which are normalized Gaussian noise, and
            of the choice of members for restarts. Defaults to None.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Returns:
        `rt_keras.layers.Heads`.

    Raises:
        ValueError: if a number is out of range, `assignment` is unknown, or `num_probes` or
            `use_query_key_norm` is incompatible with the other arguments.

    Source: Roy et al. 2021, section 4.1.

    >>> import keras
    >>> heads = RoutingHeads(2, num_clusters=4, window_size=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """
    cluster = key_sets.Cluster(
        num_clusters,
        window_size,
        "key",
        num_probes,
        use_query_key_norm,
        commitment_weight,
        seed,
        assignment=assignment,
        max_relative_distance=max_relative_distance,
        scaled=False,
    )
    return Heads(num_heads, [cluster], share_qk, **kwargs)


def LocalRoutingHeads(
    num_heads,
    block_size,
    num_clusters,
    window_size,
    look_back=1,
    max_relative_distance=None,
    relative_positions="learned",
    routed_key="previous_query",
    num_probes=1,
    use_query_key_norm=True,
    commitment_weight=1e-4,
    seed=None,
    kernel_size=None,
    share_qk=False,
    **kwargs,
):
    """Heads whose queries attend to a local window and to the keys of their cluster.

    The window is that of `LocalHeads`. The cluster adds the last `window_size` keys with similar
    content, wherever they are in the sequence. Let W(i) and N(i) be the positions that query i
    attends to in `rt_keras.ops.local_attention` and in `rt_keras.ops.nearest_attention`, and let q
    and k be the normalized routed queries and keys:

    ```
    output_i = sum_j softmax_j(logit_ij) value_j    over j in W(i) and N(i), under one softmax
    logit_ij = query_i · (key_j + r_(i - j)) / sqrt(depth)    for j in W(i)
    logit_ij = s q_i · k_j / sqrt(depth) + b                  for j in N(i)
    ```

    Each head learns the scale s and the bias b. Output i depends only on positions up to i.

    `routed_key` selects the keys of the cluster. With "previous_query", the key of position j is
    the query of position j - 1, so a query finds the positions that followed similar queries. Equal
    content gives equal queries for any weights, so a model can continue repetitions from the
    first training step. Queries and keys are sorted by cluster only once, as one list. Compared
    with local heads, only the scale, the bias and the convolution are additional trainable weights.
    With "key", the cluster uses the keys of the window and leaves out those inside the
    window. Training must then first align queries and keys.

    Routed queries are convolved over the last `kernel_size` positions, separately in each
    dimension, and then normalized:

    ```
    routed_query_i = sum_(s < kernel_size) routed_kernel_s ⊙ query_(i - s)
    ```

    The routed key of a position is the previous routed query. With the convolution, positions match
    if the last few tokens are equal, not only the last one. The window uses the queries without
    convolution. The kernel is initialized with 1 for s = 0 and small noise for other s. Queries
    before the first position and those of padding count as 0. Later queries are not included,
    whether or not attention is causal.

    Relative positions apply only to the window. With d = i - j and m the `max_relative_distance`,
    above which distances count as m, the window adds a vector r_d to its keys. The vector is
    learned for each distance or, with `relative_positions` "sinusoidal", r_d = W R_d with a learned
    W and sines and cosines R_d of the distance. Transformer-XL uses the same terms; its two query
    biases are the bias of the query's dense layer here.

    The logits of routed keys use normalized vectors, the scale and the bias. Without
    `use_query_key_norm`, they use the vectors without normalization.

    See `rt_keras.layers.centroids.Centroids` for how centroids learn and for their weights.

    Args:
        num_heads: int, number of heads in the group.
        block_size: int, number of positions in a block of the window.
        num_clusters: int, number of centroids per head. The cost is lowest with about sqrt(n).
        window_size: int, maximum number of keys of its cluster that a query attends to.
        look_back: int, number of preceding blocks that a query attends to, and of following blocks
            if attention is not causal. Defaults to 1.
        routed_key: string, "previous_query" or "key". Defaults to "previous_query".
        share_qk: bool, whether queries are also keys, in the window and, with "key", in the
            cluster. Defaults to False.
        num_probes: int, number of nearest clusters that a query attends to. Defaults to 1.
        use_query_key_norm: bool, whether logits in the cluster use normalized vectors. Routing
            always does. False, with `routed_key` "key", suits models that were trained with full
            attention. Defaults to True.
        max_relative_distance: int or None, largest distance of the relative positions in the
            window. None disables them. The furthest key is block_size * (look_back + 1) - 1
            positions away. Defaults to None.
        commitment_weight: float β, weight of the commitment loss. Defaults to 1e-4.
        seed: int or None, seed of the initial centroids, which are normalized Gaussian noise, and
            of the choice of members for restarts. Defaults to None.
        kernel_size: int or None, number of positions, up to its own, that are convolved into a
            routed query; 1 for no convolution. None for 4, or for 1 with `routed_key` "key", which
            requires 1. Defaults to None.
        relative_positions: string, "learned" or "sinusoidal", the relative positions of the window;
            see above and `rt_keras.layers.key_sets.Window`. Defaults to "learned".
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Returns:
        `rt_keras.layers.Heads`.

    Raises:
        ValueError: if a number is out of range, `routed_key` or `relative_positions` is unknown,
            `relative_positions` is not "learned" without a `max_relative_distance`, or
            `kernel_size` is above 1 with `routed_key` "key".

    Source: ours. Routing: Roy et al. 2021, section 4.1; keys of the previous position: Olsson et
    al. 2022, In-context Learning and Induction Heads; convolution: Xiao et al. 2025, Optimizing
    Mixture of Block Attention, which finds that a short convolution of the keys improves routing;
    sinusoidal positions: Dai et al. 2019, Transformer-XL, section 3.3.

    >>> import keras
    >>> heads = LocalRoutingHeads(2, block_size=4, num_clusters=4, window_size=4)
    >>> x = keras.random.normal([1, 2, 20, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 20, 8])
    """
    window = key_sets.Window(
        block_size,
        look_back,
        max_relative_distance=max_relative_distance,
        relative_positions=relative_positions,
        position_biases=False,
    )
    cluster = key_sets.Cluster(
        num_clusters,
        window_size,
        routed_key,
        num_probes,
        use_query_key_norm,
        commitment_weight,
        seed,
        kernel_size,
    )
    return Heads(num_heads, [window, cluster], share_qk, **kwargs)


def RoutingMemoryHeads(
    num_heads,
    block_size,
    num_clusters,
    window_size,
    memory_length,
    look_back=1,
    max_relative_distance=None,
    relative_positions="learned",
    num_probes=1,
    use_query_key_norm=True,
    commitment_weight=1e-4,
    seed=None,
    kernel_size=None,
    memory_keys=32,
    eviction="oldest",
    memory_block_size=None,
    share_qk=False,
    **kwargs,
):
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
            `rt_keras.layers.relative_positions.RelativePositions`. Defaults to "learned".
        num_probes: int, number of nearest clusters that a query attends to. Defaults to 1.
        use_query_key_norm: bool, whether logits use normalized vectors. Defaults to True.
        commitment_weight: float, weight of the commitment loss. Defaults to 1e-4.
        seed: int or None, seed of the initial centroids. Defaults to None.
        kernel_size: int or None, number of positions that are convolved into a routed query. None
            for 4. Defaults to None.
        share_qk: bool, whether queries are also keys. Defaults to False.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Returns:
        `rt_keras.layers.Heads`.

    Raises:
        ValueError: if a number is out of range, `memory_length` is below `memory_block_size`,
            `eviction` is unknown, an unsupported argument is given, or the heads are called without
            `use_causal_mask`.

    Source: ours; see the op.

    >>> import keras
    >>> heads = RoutingMemoryHeads(
    ...     2, block_size=8, num_clusters=4, window_size=4, memory_length=16, memory_keys=4
    ... )
    >>> x = keras.random.normal([1, 2, 40, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 40, 8])
    """
    window = key_sets.Window(
        block_size,
        look_back,
        max_relative_distance=max_relative_distance,
        relative_positions=relative_positions,
        position_biases=False,
    )
    cluster = key_sets.Cluster(
        num_clusters,
        window_size,
        num_probes=num_probes,
        use_query_key_norm=use_query_key_norm,
        commitment_weight=commitment_weight,
        seed=seed,
        kernel_size=kernel_size,
    )
    remembered = key_sets.Remembered(memory_length, memory_keys, eviction, memory_block_size)
    return Heads(num_heads, [window, cluster, remembered], share_qk, **kwargs)


def CausalClusteredHeads(
    num_heads, num_clusters=100, block_size=128, commitment_weight=1e-4, seed=None, **kwargs
):
    """Heads that attend to their own block, and to earlier keys with their centroid's weights.

    See `rt_keras.ops.causal_clustered_attention` for the equation. In `ClusteredHeads`, queries
    share the attention of the mean of similar queries of the sequence. Here, centroids learned from
    the queries of past batches replace these means, so output i depends only on positions up to i.
    The cache does not grow with the sequence. See `rt_keras.layers.centroids.Centroids` for how
    centroids learn and for their weights.

    Args:
        num_heads: int, number of heads in the group.
        num_clusters: int, number of centroids per head. Defaults to 100.
        block_size: int, number of positions in a block. Defaults to 128.
        commitment_weight: float β, weight of the commitment loss. Defaults to 1e-4.
        seed: int or None, seed of the initial centroids, which are normalized Gaussian noise, and
            of the choice of members for restarts. Defaults to None.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Returns:
        `rt_keras.layers.Heads`.

    Raises:
        ValueError: if a number is out of range, an unsupported option such as
            `max_relative_distance` is given, or the heads are called without `use_causal_mask`.

    Source: after Vyas et al. 2020, Fast Transformers with Clustered Attention.

    >>> import keras
    >>> heads = CausalClusteredHeads(2, num_clusters=3, block_size=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """
    key_set = key_sets.BlockAndCentroids(num_clusters, block_size, commitment_weight, seed)
    return Heads(num_heads, [key_set], **kwargs)
