"""The set of the keys in a query's block, and of earlier keys with its centroid's weights."""

import dataclasses

import keras
import tensorflow as tf

from rt_keras.keys import AT_LEAST_1, NOT_NEGATIVE, key
from rt_keras.layers.key_sets.by_ops import ByOps
from rt_keras.ops.blocks import repeat_heads
from rt_keras.ops.causal_clustered import (
    causal_clustered_attention,
    causal_clustered_cache,
    causal_clustered_step,
)


@keras.saving.register_keras_serializable(package="rt_keras")
@dataclasses.dataclass(frozen=True, repr=False)
class BlockAndCentroids(ByOps):
    """The keys of a query's own block, and all earlier keys with the weights of its centroid.

    See `rt_keras.ops.causal_clustered_attention` for the equation. The fields are the arguments of
    `rt_keras.layers.CausalClusteredHeads`. The cache does not grow with the sequence.

    Args:
        num_clusters: int, number of centroids per head. Defaults to 100.
        block_size: int, number of positions in a block. Defaults to 128.
        commitment_weight: float, weight of the commitment loss. Defaults to 0.0001.
        seed: int or None, seed of the initial centroids. Defaults to None.

    Raises:
        ValueError: if a value is out of range.

    Source: after Vyas et al. 2020.

    >>> from rt_keras.layers import Heads
    >>> x = keras.random.normal([1, 2, 20, 8])
    >>> Heads(2, [BlockAndCentroids(3, block_size=4)])(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 20, 8])
    """

    name = "causal_clustered"
    needs_causal_mask = True
    joins = False
    groups_queries = False
    # Centroids represent queries.
    clusters_queries_alone = True
    step_op = staticmethod(causal_clustered_step)

    num_clusters: int = key(100, "centroids per head", AT_LEAST_1)
    block_size: int = key(128, "positions per block", AT_LEAST_1)
    commitment_weight: float = key(1e-4, "weight of the commitment loss", NOT_NEGATIVE)
    seed: int | None = None

    def build(self, heads, depth, value_depth):
        heads.build_centroids(depth)

    def attend(self, heads, chunk, joins):
        options = {**chunk.of_sequence, **self.op_options(heads, joins)}
        # The op is always causal.
        del options["causal"]
        return causal_clustered_attention(*self._inputs(heads, chunk), **options)

    def prefill_state(self, heads, chunk, max_length):
        _, key, value = self._inputs(heads, chunk)
        return causal_clustered_cache(
            key,
            value,
            tf.convert_to_tensor(heads.centroids),
            chunk.count,
            block_size=self.block_size,
            max_length=max_length,
        )

    def op_options(self, heads, joins):
        return {
            "centroids": tf.convert_to_tensor(heads.centroids),
            "load_bias": tf.convert_to_tensor(heads.load_bias),
            "block_size": self.block_size,
        }

    def _inputs(self, heads, chunk):
        # Keys and values are repeated for each query head.
        return chunk.query, *(repeat_heads(x, heads.num_heads) for x in (chunk.keys, chunk.value))
