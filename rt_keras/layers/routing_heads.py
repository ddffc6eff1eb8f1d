"""Heads that see the keys of their own cluster."""

import keras

from rt_keras.layers.heads import Heads
from rt_keras.layers.key_sets import Cluster


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingHeads(Heads):
    """Heads whose queries see keys of their own cluster, found by online k-means.

    Queries and keys are layer-normalised over the depth and routed by their scores
    `centroid_c · x`. See `rt_keras.ops.nearest_attention` and `rt_keras.ops.balanced_attention`
    for the equations of the two assignments: with "nearest" output i depends on positions up to i
    alone; with "balanced" (the paper's) it depends on later positions too, through the routing,
    even if attention is causal.

    How centroids learn, and the layer's weights: see `rt_keras.layers.CentroidHeads`.

    Args:
        num_heads: int, heads in the group.
        num_clusters: int, centroids of each head. About sqrt(n) of them cost least.
        window_size: int, how many members of its cluster a query attends among.
        assignment: "nearest", the default, or "balanced": how positions join clusters.
        share_qk: bool, whether queries are their own keys, as in the paper for causal attention.
            Separate ones, the default, cost twice as much with "nearest", and learn recall far
            better.
        num_probes: int, with "nearest", in how many of its nearest clusters a query attends.
            Defaults to 1.
        normalize: bool, whether logits are of normalised queries and keys, as in the paper. False,
            only with "nearest", takes them as they are and normalises them for routing alone, as
            suits a model that was trained with full attention. Defaults to True.
        max_relative_distance: int, reach of the relative positions; None, the default, for none.
        commitment_weight: float β, weight of the commitment loss. Defaults to 1e-4.
        seed: int or None, seed of the initial centroids, normalised Gaussian noise, and of the
            choice of members kept for restarts.
        attention_activation: "softmax", the default, or "sparsemax" or "entmax15", which give most
            keys a weight of exactly 0; see `rt_keras.ops.sparsemax` and `rt_keras.ops.entmax15`.
            They need assignment "nearest" and one probe.
        num_persistent_keys: int, keys and values that each head learns and every query sees; None,
            the default, for none. See `rt_keras.ops.persistent_attention`.
        dense_below: int, see `HeadGroup`; None, the default, for never.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Raises:
        ValueError: if a number is out of range, `assignment` or `attention_activation` is unknown,
            or `num_probes`, `normalize` or `attention_activation` cannot be combined with the rest.

    Source: Roy et al. 2021, section 4.1.

    >>> heads = RoutingHeads(2, num_clusters=4, window_size=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    declared = (Cluster,)
    fixed = {"routed_key": "key", "kernel_size": 1, "scaled": False}
    can_share_qk = True
