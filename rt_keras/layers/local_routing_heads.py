"""Heads that attend to a local window and to the keys of their cluster."""

import keras

from rt_keras.layers.heads import Heads
from rt_keras.layers.key_sets import Cluster, Window

# Options of a window that are not arguments of heads with other sets of keys.
WINDOW_ALONE = {
    "sliding_window": None,
    "grid": None,
    "key_block_size": None,
    "position_biases": False,
    "assignment": "nearest",
    "scaled": True,
}


@keras.saving.register_keras_serializable(package="rt_keras")
class LocalRoutingHeads(Heads):
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

    See `rt_keras.layers.CentroidHeads` for how centroids learn and for the other weights of the
    layer.

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

    Raises:
        ValueError: if a number is out of range, `routed_key` or `relative_positions` is unknown,
            `relative_positions` is not "learned" without a `max_relative_distance`, or
            `kernel_size` is above 1 with `routed_key` "key".

    Source: ours. Routing: Roy et al. 2021, section 4.1; keys of the previous position: Olsson et
    al. 2022, In-context Learning and Induction Heads; convolution: Xiao et al. 2025, Optimizing
    Mixture of Block Attention, which finds that a short convolution of the keys improves routing;
    sinusoidal positions: Dai et al. 2019, Transformer-XL, section 3.3.

    >>> heads = LocalRoutingHeads(2, block_size=4, num_clusters=4, window_size=4)
    >>> x = keras.random.normal([1, 2, 20, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 20, 8])
    """

    declared = (Window, Cluster)
    fixed = WINDOW_ALONE
    can_share_qk = True
