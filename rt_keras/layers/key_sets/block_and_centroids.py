"""The set of the keys in a query's block, and of earlier keys with its centroid's weights."""

import keras
import tensorflow as tf

from rt_keras.layers.abilities import Abilities
from rt_keras.layers.centroids import Centroids
from rt_keras.layers.head_options import positive_int
from rt_keras.layers.key_sets.key_set import KeySet
from rt_keras.ops.blocks import repeat_heads
from rt_keras.ops.causal_clustered import (
    causal_clustered_attention,
    causal_clustered_cache,
    causal_clustered_step,
)


@keras.saving.register_keras_serializable(package="rt_keras")
class BlockAndCentroids(KeySet):
    """The keys of a query's own block, and all earlier keys with the weights of its centroid.

    See `rt_keras.ops.causal_clustered_attention` for the equation. The cache does not grow with the
    sequence.

    Args:
        num_clusters: int, number of centroids per head. Defaults to 100.
        block_size: int, number of positions in a block. Defaults to 128.
        commitment_weight: float, weight of the commitment loss. Defaults to 0.0001.
        seed: int or None, seed of the initial centroids. Defaults to None.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Raises:
        ValueError: if a value is out of range.

    Source: after Vyas et al. 2020.

    >>> from rt_keras.layers import Heads
    >>> x = keras.random.normal([1, 2, 20, 8])
    >>> Heads(2, [BlockAndCentroids(3, block_size=4)])(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 20, 8])
    """

    state_name = "causal_clustered"
    abilities = Abilities(bidirectional=False, strictly_causal=True, cached=True)

    def __init__(
        self, num_clusters=100, block_size=128, commitment_weight=1e-4, seed=None, **kwargs
    ):
        super().__init__(**kwargs)
        self.num_clusters = num_clusters
        self.block_size = positive_int("block_size", block_size)
        self.commitment_weight = commitment_weight
        self.seed = seed
        self.centroids = Centroids(num_clusters, commitment_weight, seed, name="centroids")

    def build(self, query_shape, value_shape):
        # Centroids represent queries.
        self.centroids.build(query_shape, sources=1)
        super().build(query_shape, value_shape)

    def attend(self, inputs, return_logsumexp):
        options = inputs.sequence_options()
        # The op is always causal.
        del options["causal"]
        return causal_clustered_attention(*self._vectors(inputs), **self._options(), **options)

    def prefill_state(self, inputs, max_length):
        _, key, value = self._vectors(inputs)
        return causal_clustered_cache(
            key,
            value,
            tf.convert_to_tensor(self.centroids.centroids),
            inputs.count,
            block_size=self.block_size,
            max_length=max_length,
        )

    def attend_step(self, inputs, state, return_logsumexp):
        vectors, options = self._vectors(inputs), self._options()
        return causal_clustered_step(
            *vectors, state, inputs.position, count=inputs.count, **options
        )

    def _vectors(self, inputs):
        """Returns queries, keys and values, which are repeated for each query head."""
        heads = inputs.query.shape[1]
        return inputs.query, *(repeat_heads(x, heads) for x in (inputs.keys, inputs.value))

    def _options(self):
        return {
            "centroids": tf.convert_to_tensor(self.centroids.centroids),
            "load_bias": tf.convert_to_tensor(self.centroids.load_bias),
            "block_size": self.block_size,
        }

    def clustered_vectors(self, inputs):
        return {"queries": (inputs.query, inputs.query_mask)}

    def get_config(self):
        return {
            **super().get_config(),
            "num_clusters": self.num_clusters,
            "block_size": self.block_size,
            "commitment_weight": self.commitment_weight,
            "seed": self.seed,
        }
