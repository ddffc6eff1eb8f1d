"""Heads that see every n-th position."""

import keras

from rt_keras.layers.head_group import HeadGroup, positive_int
from rt_keras.ops.strided import strided_attention
from rt_keras.ops.strided_decode import strided_cache, strided_step


@keras.saving.register_keras_serializable(package="rt_keras")
class StridedHeads(HeadGroup):
    """Heads whose queries see the keys at multiples of a stride from them.

    See `rt_keras.ops.strided_attention` for the equation. The cost is O(n² / stride).

    Args:
        num_heads: int, heads in the group.
        stride: int, positions from one key to the next.
        max_relative_distance: int, reach of the relative positions, in strides; None, the default,
            for none.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Raises:
        ValueError: if a size is not a positive integer.

    Source: Child et al. 2019, Generating Long Sequences with Sparse Transformers, section 4.3.

    >>> heads = StridedHeads(2, stride=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    strictly_causal = True
    cached_decoding = True
    cache_grows = True

    def __init__(
        self,
        num_heads,
        stride,
        max_relative_distance=None,
        **kwargs,
    ):
        super().__init__(num_heads, max_relative_distance, **kwargs)
        self.stride = positive_int("stride", stride)

    def attend(self, **arguments):
        return strided_attention(stride=self.stride, **arguments)

    def fill_cache(self, *, query, count, **arguments):
        # The step masks what lies behind its position.
        return strided_cache(stride=self.stride, **arguments)

    def step(self, **arguments):
        return strided_step(stride=self.stride, **arguments)

    def get_config(self):
        return {**super().get_config(), "stride": self.stride}
