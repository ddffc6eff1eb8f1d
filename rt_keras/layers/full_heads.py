"""Heads that see everything."""

import keras

from rt_keras.layers.head_group import HeadGroup
from rt_keras.ops.entmax import check_activation
from rt_keras.ops.full import full_attention
from rt_keras.ops.full_decode import full_cache, full_cross_step, full_step
from rt_keras.ops.full_piece import full_piece


@keras.saving.register_keras_serializable(package="rt_keras")
class FullHeads(HeadGroup):
    """Heads whose queries see every key, at a cost of O(n²).

    See `rt_keras.ops.full_attention` for the equation. The only group that takes any
    `attention_mask`.

    Args:
        num_heads: int, heads in the group.
        max_relative_distance: int, reach of the relative positions; None, the default, for none.
        token_bias: None, "fixed" or "trainable"; see `HeadGroup`.
        attention_activation: "softmax", the default, or "sparsemax" or "entmax15", which give most
            keys a weight of exactly 0; see `rt_keras.ops.sparsemax` and `rt_keras.ops.entmax15`.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Raises:
        ValueError: if `attention_activation` is unknown.

    Source: Vaswani et al. 2017, Attention Is All You Need, section 3.2.

    >>> heads = FullHeads(2)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    takes_attention_mask = True
    cached_decoding = True
    cache_grows = True
    cached_cross_attention = True
    runs_in_litert = True

    def __init__(
        self,
        num_heads,
        max_relative_distance=None,
        token_bias=None,
        attention_activation="softmax",
        **kwargs,
    ):
        super().__init__(num_heads, max_relative_distance, token_bias, **kwargs)
        check_activation(attention_activation)
        self.attention_activation = attention_activation

    @property
    def takes_global_tokens(self):
        """Whether attention is softmax."""
        return self.attention_activation == "softmax"

    def attend(self, **arguments):
        return full_attention(activation=self.attention_activation, **arguments)

    def fill_cache(self, *, count, **arguments):
        # The step masks what lies behind its position.
        return full_cache(**arguments)

    def step(self, **arguments):
        return full_step(activation=self.attention_activation, **arguments)

    def piece(self, **arguments):
        return full_piece(activation=self.attention_activation, **arguments)

    def cross_step(self, **arguments):
        return full_cross_step(activation=self.attention_activation, **arguments)

    def get_config(self):
        return {**super().get_config(), "attention_activation": self.attention_activation}
