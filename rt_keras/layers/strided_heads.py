"""Heads that see every so-manieth position."""

import keras

from rt_keras.layers.head_group import HeadGroup, positive_int
from rt_keras.ops.strided import strided_attention
from rt_keras.ops.strided_decode import strided_cache, strided_step


@keras.saving.register_keras_serializable(package="rt_keras")
class StridedHeads(HeadGroup):
    """Heads whose queries see the keys at multiples of a stride from them.

    See `rt_keras.ops.strided_attention` for the equation. The cost is O(n² / stride).

    Args:
        num_heads: heads in the group.
        stride: positions from one key to the next.
        max_relative_distance: reach of the relative positions, in strides, or None for none; see
            `HeadGroup`.
        token_bias: None, "fixed" or "trainable"; see `HeadGroup`.
        reference: whether to compute what the code of the paper's authors does, for its
            checkpoints alone; see `rt_keras.ops.strided_attention`.
        **kwargs: those of `keras.layers.Layer`.

    Raises:
        ValueError: if a size is not a positive integer.

    Source: Child et al. 2019, Generating Long Sequences with Sparse Transformers, section 4.3.

    >>> heads = StridedHeads(2, stride=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    cached_decoding = True

    def __init__(
        self,
        num_heads,
        stride,
        max_relative_distance=None,
        token_bias=None,
        reference=False,
        **kwargs,
    ):
        super().__init__(num_heads, max_relative_distance, token_bias, **kwargs)
        self.stride = positive_int("stride", stride)
        self.reference = bool(reference)

    def attend(self, query, key, value, options):
        return strided_attention(
            query, key, value, stride=self.stride, reference=self.reference, **options
        )

    def fill_cache(self, key, value, count, max_length, options):
        return strided_cache(key, value, stride=self.stride, max_length=max_length, **options)

    def step(self, query, key, value, cache, position, options):
        return strided_step(query, key, value, cache, position, stride=self.stride, **options)

    def _bias_of(self, token_bias, keys):
        return {} if self.reference else super()._bias_of(token_bias, keys)

    def get_config(self):
        return {**super().get_config(), "stride": self.stride, "reference": self.reference}
