"""Heads that see everything."""

import keras

from rt_keras.layers.head_group import HeadGroup
from rt_keras.ops.full import full_attention
from rt_keras.ops.full_decode import full_cache, full_cross_step, full_step


@keras.saving.register_keras_serializable(package="rt_keras")
class FullHeads(HeadGroup):
    """Heads whose queries see every key, at a cost of O(n²).

    See `rt_keras.ops.full_attention` for the equation. The only group that takes any
    `attention_mask`.

    Args:
        num_heads: heads in the group.
        max_relative_distance: reach of the relative positions, or None for none; see `HeadGroup`.
        token_bias: None, "fixed" or "trainable"; see `HeadGroup`.
        **kwargs: those of `keras.layers.Layer`.

    Source: Vaswani et al. 2017, Attention Is All You Need, section 3.2.

    >>> heads = FullHeads(2)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    takes_attention_mask = True
    cached_decoding = True
    cached_cross_attention = True

    def attend(self, query, key, value, options):
        return full_attention(query, key, value, **options)

    def fill_cache(self, key, value, count, max_length, options):
        return full_cache(key, value, max_length=max_length, **options)

    def step(self, query, key, value, cache, position, options):
        return full_step(query, key, value, cache, position, **options)

    def cross_step(self, query, key, value, position, options):
        return full_cross_step(query, key, value, position, **options)
