"""Heads that see a local window and the keys of their cluster."""

import keras

from rt_keras.layers.heads import Heads
from rt_keras.layers.key_sets import Cluster, Window

# Options of a window that are not arguments of heads that see more.
WINDOW_ALONE = {
    "sliding_window": None,
    "grid": None,
    "key_block_size": None,
    "attention_activation": "softmax",
    "adaptive_span": False,
    "span_ramp": 32,
    "span_loss_weight": 2e-6,
    "position_biases": False,
    "assignment": "nearest",
    "scaled": True,
}


@keras.saving.register_keras_serializable(package="rt_keras")
class LocalRoutingHeads(Heads):
    """Heads whose queries see the blocks around them and, however far back, keys of their cluster.

    The window of `LocalHeads` is what nearby text takes; the cluster adds the last `window_size`
    keys whose content fits the query. With W(i) the window that `rt_keras.ops.local_attention`
    gives to i, N(i) the positions that `rt_keras.ops.nearest_attention` gives to i, and q, k the
    normalised routed queries and keys:

    ```
    output_i = sum_j softmax_j(logit_ij) value_j    over j in W(i) and N(i), under one softmax
    logit_ij = query_i · (key_j + r_(i - j)) / sqrt(depth)    for j in W(i)
    logit_ij = s q_i · k_j / sqrt(depth) + b                  for j in N(i)
    ```

    with a factor s and a bias b that each head learns. Output i depends on positions up to i alone.

    `routed_key` says what a key is in a cluster. With "previous_query", the key of position j is
    the query of position j - 1: a query that was asked before finds what followed it then.
    Repetitions are continued from the first step of training on, as equal content gives equal
    queries, whatever the weights; queries and keys are sorted by cluster once, as one list; and the
    layer has no more weights than local heads but a scale and a bias for each head. With "key" it
    is the key that the window has too, only keys outside the window are seen in the cluster, and
    training must bring queries and keys together first.

    The queries that are routed are convolved over the `kernel_size` positions up to their own,
    dimension by dimension, and normalised after that:

    ```
    routed_query_i = sum_(s < kernel_size) routed_kernel_s ⊙ query_(i - s)
    ```

    The routed key of a position is the routed query of the one before, so equal contexts of a few
    tokens find each other then, not only equal tokens. The window keeps the queries as they are.
    Training starts with 1 for s = 0 and little noise for the others. Queries before the first
    position and those of padding count as 0, and later ones have no part, causal or not.

    Relative positions are of the window alone. With d = i - j and m the `max_relative_distance`,
    beyond which distances count as m, the window adds a vector r_d to its keys: one that is learnt
    for each distance, or, with `relative_positions` "sinusoidal", r_d = W R_d of a learnt W and
    sines and cosines R_d of the distance. Transformer-XL has these too; its two biases of the
    queries are here the bias of their dense layer.

    The logits of routed keys are those of normalised vectors, times the scale, plus the bias.
    Without `normalize` they are those of the vectors as they are.

    How centroids learn, and the layer's other weights: see `rt_keras.layers.CentroidHeads`.

    Args:
        num_heads: int, heads in the group.
        block_size: int, positions in a block of the window.
        num_clusters: int, centroids of each head. About sqrt(n) of them cost least.
        window_size: int, the most keys that a query sees in a cluster.
        look_back: int, blocks before its own that a query sees, and after it if attention is not
            causal. Defaults to 1.
        routed_key: "previous_query", the default, or "key".
        share_qk: bool, whether queries are their own keys, in the window and, with "key", in the
            cluster. Defaults to False.
        num_probes: int, in how many of its nearest clusters a query attends. Defaults to 1.
        normalize: bool, see above; routing always is by normalised vectors. False, with
            `routed_key` "key", suits a model that was trained with full attention. Defaults to
            True.
        max_relative_distance: int, reach of the relative positions in the window; None, the
            default, for none. The furthest key is block_size * (look_back + 1) - 1 positions away.
        commitment_weight: float β, weight of the commitment loss. Defaults to 1e-4.
        seed: int or None, seed of the initial centroids, normalised Gaussian noise, and of the
            choice of members kept for restarts.
        kernel_size: int, over how many positions, its own the last, a routed query is convolved; 1
            for no convolution. Defaults to None, for 4, or for 1 with `routed_key` "key", which
            allows no other.
        relative_positions: "learned", the default, "sinusoidal" or "bucketed", of the window; see
            above and `rt_keras.layers.key_sets.Window`.
        num_persistent_keys: int, keys and values that each head learns and every query sees; None,
            the default, for none. See `rt_keras.ops.persistent_attention`.
        dense_below: int, see `HeadGroup`; None, the default, for never.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Raises:
        ValueError: if a number is out of range, `routed_key` or `relative_positions` is unknown,
            these are not "learned" without a `max_relative_distance`, or `kernel_size` is above 1
            with `routed_key` "key".

    Source: ours. Routing: Roy et al. 2021, section 4.1; keys of the position before: Olsson et al.
    2022, In-context Learning and Induction Heads; the convolution: after the finding of Xiao et al.
    2025, Optimizing Mixture of Block Attention, that a short one over the keys helps routing;
    sinusoidal positions: Dai et al. 2019, Transformer-XL, section 3.3.

    >>> heads = LocalRoutingHeads(2, block_size=4, num_clusters=4, window_size=4)
    >>> x = keras.random.normal([1, 2, 20, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 20, 8])
    """

    declared = (Window, Cluster)
    fixed = WINDOW_ALONE
    can_share_qk = True
