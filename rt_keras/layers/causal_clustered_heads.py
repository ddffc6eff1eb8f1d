"""Heads that attend to their block, and to earlier keys with the weights of a centroid."""

import keras

from rt_keras.layers.heads import Heads
from rt_keras.layers.key_sets import BlockAndCentroids


@keras.saving.register_keras_serializable(package="rt_keras")
class CausalClusteredHeads(Heads):
    """Heads that attend to their own block, and to earlier keys with their centroid's weights.

    See `rt_keras.ops.causal_clustered_attention` for the equation. In `ClusteredHeads`, queries
    share the attention of the mean of similar queries of the sequence. Here, centroids learned from
    the queries of past batches replace these means, so output i depends only on positions up to i.
    The cache does not grow with the sequence. See `rt_keras.layers.CentroidHeads` for how centroids
    learn and for the weights of the layer.

    Args:
        num_heads: int, number of heads in the group.
        num_clusters: int, number of centroids per head. Defaults to 100.
        block_size: int, number of positions in a block. Defaults to 128.
        commitment_weight: float β, weight of the commitment loss. Defaults to 1e-4.
        seed: int or None, seed of the initial centroids, which are normalized Gaussian noise, and
            of the choice of members for restarts. Defaults to None.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Raises:
        ValueError: if a number is out of range, an unsupported option such as
            `max_relative_distance` is given, or the heads are called without `use_causal_mask`.

    Source: after Vyas et al. 2020, Fast Transformers with Clustered Attention.

    >>> heads = CausalClusteredHeads(2, num_clusters=3, block_size=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    declared = (BlockAndCentroids,)
