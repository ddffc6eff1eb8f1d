"""Heads that attend to the keys in the query's hash bucket."""

import keras

from rt_keras.layers.head_group import HeadGroup
from rt_keras.layers.head_options import positive_int
from rt_keras.ops.hashed import hashed_attention


@keras.saving.register_keras_serializable(package="rt_keras")
class HashedHeads(HeadGroup):
    """Heads whose queries attend to the first keys in their locality-sensitive hash bucket.

    See `rt_keras.ops.hashed_attention`. The random projections of the hash are not trained. The
    members of a bucket depend on the whole sequence, and so do the outputs even if attention is
    causal.

    Args:
        num_heads: int, number of heads in the group.
        num_buckets: int, number of buckets per head, computed from floor(log2(num_buckets))
            projections.
        window_size: int, number of members of a bucket that attend.
        share_qk: bool, whether queries are also keys. Defaults to False.
        max_relative_distance: int or None, largest distance of the relative positions. None
            disables them. Defaults to None.
        seed: int or None, seed of the projections. Defaults to None.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Weights:
        projections: `[heads, bits, depth]`, not trainable.

    Raises:
        ValueError: if a size is not a positive integer, or there are fewer than 2 buckets.

    Source: Kitaev et al. 2020, Reformer, section 2; Roy et al. 2021, section 5.2.

    >>> heads = HashedHeads(2, num_buckets=4, window_size=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x).shape
    TensorShape([1, 2, 10, 8])
    """

    attention_op = staticmethod(hashed_attention)
    op_arguments = ("projections", "num_buckets", "window_size")

    def __init__(
        self,
        num_heads,
        num_buckets,
        window_size,
        share_qk=False,
        max_relative_distance=None,
        seed=None,
        **kwargs,
    ):
        super().__init__(num_heads, max_relative_distance, **kwargs)
        if positive_int("num_buckets", num_buckets) < 2:
            raise ValueError(f"num_buckets must be at least 2. Received: {num_buckets}")
        self.num_buckets = num_buckets
        self.window_size = positive_int("window_size", window_size)
        self.share_qk = bool(share_qk)
        self.seed = seed

    def build(self, query_shape, value_shape=None, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        initializer = keras.initializers.Orthogonal(seed=self.seed)
        bits = self.num_buckets.bit_length() - 1
        self.add_constant("projections", bits, query_shape[-1], initializer=initializer)
