"""Heads that see their block, and what lies before it as their centroid does."""

import keras
import tensorflow as tf

from rt_keras.layers.centroid_heads import CentroidHeads
from rt_keras.layers.head_group import positive_int, refuse_options
from rt_keras.ops.blocks import repeat_heads
from rt_keras.ops.causal_clustered import causal_clustered_attention
from rt_keras.ops.causal_clustered_decode import causal_clustered_cache, causal_clustered_step

# What other heads with centroids have.
NOT_TAKEN = ("window_size", "share_qk", "max_relative_distance")


@keras.saving.register_keras_serializable(package="rt_keras")
class CausalClusteredHeads(CentroidHeads):
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

    strictly_causal = True
    needs_causal_mask = True
    cached_decoding = True
    # Centroids stand for queries.
    clusters_queries_alone = True

    def __init__(
        self,
        num_heads,
        num_clusters=100,
        block_size=128,
        commitment_weight=1e-4,
        seed=None,
        **kwargs,
    ):
        refuse_options(self, kwargs, NOT_TAKEN)
        super().__init__(
            num_heads,
            num_clusters,
            window_size=positive_int("block_size", block_size),
            commitment_weight=commitment_weight,
            seed=seed,
            **kwargs,
        )
        self.block_size = block_size

    def attend(self, *, causal, **arguments):
        return causal_clustered_attention(
            **self._routing(), load_bias=tf.convert_to_tensor(self.load_bias), **arguments
        )

    def fill_cache(self, *, query, key, value, **arguments):
        key, value = self._of_each_head(key, value)
        return causal_clustered_cache(key=key, value=value, **self._routing(), **arguments)

    def step(self, *, key, value, **arguments):
        key, value = self._of_each_head(key, value)
        return causal_clustered_step(
            key=key,
            value=value,
            load_bias=tf.convert_to_tensor(self.load_bias),
            **self._routing(),
            **arguments,
        )

    def _of_each_head(self, *tensors):
        """Keys and values for each head of queries, whose centroids differ."""
        return (repeat_heads(x, self.num_heads) for x in tensors)

    def _routing(self):
        return {"centroids": tf.convert_to_tensor(self.centroids), "block_size": self.block_size}

    def get_config(self):
        config = super().get_config()
        for name in NOT_TAKEN:
            del config[name]
        return {**config, "block_size": self.block_size}
