"""Heads that see their block, and what lies before it as their centroid does."""

import keras

from rt_keras.layers.heads import Heads
from rt_keras.layers.key_sets import BlockAndCentroids


@keras.saving.register_keras_serializable(package="rt_keras")
class CausalClusteredHeads(Heads):
    """Heads whose queries see their own block, and earlier positions as their centroid does.

    See `rt_keras.ops.causal_clustered_attention` for the equation. `ClusteredHeads` attend as the
    mean of similar queries of the sequence; here centroids, learnt from the queries of past
    batches, stand for them, so that output i depends on positions up to i alone. What decoding
    keeps does not grow with the sequence. How centroids learn, and the layer's weights: see
    `rt_keras.layers.CentroidHeads`.

    Args:
        num_heads: int, heads in the group.
        num_clusters: int, centroids of each head. Defaults to 100.
        block_size: int, positions in a block. Defaults to 128.
        commitment_weight: float β, weight of the commitment loss. Defaults to 1e-4.
        seed: int or None, seed of the initial centroids, normalised Gaussian noise, and of the
            choice of members kept for restarts.
        dense_below: int, see `HeadGroup`; None, the default, for never.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Raises:
        ValueError: if a number is out of range, there is an option that these heads do not have,
            such as `max_relative_distance`, or a call is not to be causal.

    Its model is the clustered attention of Vyas et al. 2020.

    >>> heads = CausalClusteredHeads(2, num_clusters=3, block_size=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    declared = (BlockAndCentroids,)
    fixed = {"num_persistent_keys": None}
