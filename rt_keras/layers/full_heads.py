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
        num_heads: int, heads in the group.
        max_relative_distance: int, reach of the relative positions; None, the default, for none.
        token_bias: None, "fixed" or "trainable"; see `HeadGroup`.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Source: Vaswani et al. 2017, Attention Is All You Need, section 3.2.

    >>> heads = FullHeads(2)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    takes_attention_mask = True
    cached_decoding = True
    cached_cross_attention = True
    runs_in_litert = True

    def attend(self, **arguments):
        return full_attention(**arguments)

    def fill_cache(self, *, count, **arguments):
        # The step masks what lies behind its position.
        return full_cache(**arguments)

    def step(self, **arguments):
        return full_step(**arguments)

    def cross_step(self, **arguments):
        return full_cross_step(**arguments)
