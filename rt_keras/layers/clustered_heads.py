"""Heads whose similar queries share attention weights."""

import keras

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
            `max_relative_distance` is given, or a call is causal without `causal_by_mask`.

    Source: Vyas et al. 2020, Fast Transformers with Clustered Attention.

    >>> heads = ClusteredHeads(2, num_clusters=3, top_k=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x).shape
    TensorShape([1, 2, 10, 8])
    """

    takes_relative_positions = False
    attention_op = staticmethod(clustered_attention)
    op_arguments = ("projections", "num_clusters", "top_k", "iterations")

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
        self.causal_by_mask = self.takes_causal_mask = bool(causal_by_mask)
        if causal_by_mask and top_k is None:
            raise ValueError("causal_by_mask=True needs top_k. Received: top_k=None")
        self.seed = seed

    def build(self, query_shape, value_shape=None, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        initializer = keras.initializers.RandomNormal(stddev=1.0, seed=self.seed)
        self.add_constant("projections", self.bits, query_shape[-1], initializer=initializer)
