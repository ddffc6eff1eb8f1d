"""Heads whose similar queries share attention weights."""

import keras
import tensorflow as tf

from rt_keras.layers.abilities import Abilities
from rt_keras.layers.head_group import HeadGroup
from rt_keras.layers.head_options import positive_int, positive_int_or_none
from rt_keras.ops.clustered import clustered_attention


@keras.saving.register_keras_serializable(package="rt_keras")
class ClusteredHeads(HeadGroup):
    """Heads that approximate full attention by the attention of groups of similar queries.

    See `rt_keras.ops.clustered_attention`. Each call computes new groups from the signs of random
    projections, which are not trained. Groups depend on all queries, so outputs depend on later
    positions. `CausalClusteredHeads` are the strictly causal variant.

    Args:
        num_heads: int, number of heads in the group.
        num_clusters: int, maximum number of groups of queries per head. Defaults to 100.
        top_k: int or None, maximum number of keys that each query attends to individually, for
            improved clustered attention. None disables it. Defaults to None.
        bits: int, number of projections. Defaults to 63.
        iterations: int, number of k-means iterations per call. Defaults to 10.
        causal_by_mask: bool, whether to support causal masks as in the code of the paper's authors:
            each query attends to its group's `top_k` keys up to its own position. Outputs still
            depend on later positions, which influence the groups and their keys. Defaults to False.
        seed: int or None, seed of the projections. Defaults to None.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Weights:
        projections: `[heads, bits, depth]`, not trainable.

    Raises:
        ValueError: if a size is not a positive integer, `causal_by_mask` is True without `top_k`,
            or a call is causal without `causal_by_mask`.

    Source: Vyas et al. 2020, Fast Transformers with Clustered Attention.

    >>> heads = ClusteredHeads(2, num_clusters=3, top_k=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x).shape
    TensorShape([1, 2, 10, 8])
    """

    def __init__(
        self,
        num_heads,
        num_clusters=100,
        top_k=None,
        bits=63,
        iterations=10,
        causal_by_mask=False,
        seed=None,
        **kwargs,
    ):
        super().__init__(num_heads, **kwargs)
        self.num_clusters = positive_int("num_clusters", num_clusters)
        self.top_k = positive_int_or_none("top_k", top_k)
        self.bits = positive_int("bits", bits)
        self.iterations = positive_int("iterations", iterations)
        self.causal_by_mask = bool(causal_by_mask)
        if causal_by_mask and top_k is None:
            raise ValueError("causal_by_mask=True needs top_k. Received: top_k=None")
        self.seed = seed

    def build(self, query_shape, value_shape=None, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        initializer = keras.initializers.RandomNormal(stddev=1.0, seed=self.seed)
        shape = self.bits, query_shape[-1]
        self.projections = self.add_constant("projections", *shape, initializer=initializer)

    @property
    def abilities(self):
        return Abilities(causal=self.causal_by_mask)

    def attend(self, inputs, return_logsumexp=False):
        return clustered_attention(
            inputs.query,
            inputs.key,
            inputs.value,
            projections=tf.convert_to_tensor(self.projections),
            num_clusters=self.num_clusters,
            top_k=self.top_k,
            iterations=self.iterations,
            **inputs.sequence_options(shared=True),
        )

    def get_config(self):
        return {
            **super().get_config(),
            "num_clusters": self.num_clusters,
            "top_k": self.top_k,
            "bits": self.bits,
            "iterations": self.iterations,
            "causal_by_mask": self.causal_by_mask,
            "seed": self.seed,
        }
