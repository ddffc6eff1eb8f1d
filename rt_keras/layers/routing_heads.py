"""Heads that attend to the keys of the query's cluster."""

import keras

from rt_keras.layers.heads import Heads
from rt_keras.layers.key_sets import Cluster


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingHeads(Heads):
    """Heads whose queries attend to keys of their own cluster, found by online k-means.

    Queries and keys are layer-normalized over the depth and routed by their scores
    `centroid_c · x`. See `rt_keras.ops.nearest_attention` and `rt_keras.ops.balanced_attention` for
    the equations of the two assignments. With "nearest", output i depends only on positions up to
    i. With "balanced", the assignment of the paper, the routing depends on later positions, and so
    do the outputs even if attention is causal.

    See `rt_keras.layers.CentroidHeads` for how centroids learn and for the weights of the layer.

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

    Raises:
        ValueError: if a number is out of range, `assignment` is unknown, or `num_probes` or
            `use_query_key_norm` is incompatible with the other arguments.

    Source: Roy et al. 2021, section 4.1.

    >>> heads = RoutingHeads(2, num_clusters=4, window_size=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    declared = (Cluster,)
    fixed = {"routed_key": "key", "kernel_size": 1, "scaled": False}
    can_share_qk = True
