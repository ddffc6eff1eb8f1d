"""Heads that see everything."""

import keras

from rt_keras.layers.head_group import positive_int
from rt_keras.layers.positioned_heads import PositionedHeads
from rt_keras.ops.blocks import ceil_div
from rt_keras.ops.entmax import check_activation
from rt_keras.ops.full import full_attention
from rt_keras.ops.full_decode import full_cache, full_cross_step, full_step
from rt_keras.ops.full_piece import full_piece
from rt_keras.ops.local import local_attention
from rt_keras.ops.local_decode import local_cache, local_step
from rt_keras.ops.local_piece import local_piece

# Blocks that a memory is cut into: more waste fewer keys, and make smaller matrices.
BLOCKS_OF_MEMORY = 4


@keras.saving.register_keras_serializable(package="rt_keras")
class FullHeads(PositionedHeads):
    """Heads whose queries see every key, at a cost of O(n²).

    See `rt_keras.ops.full_attention` for the equation. The only group that takes any
    `attention_mask`.

    With a `memory_length`, causal queries see so many keys, their own the last: the cost is
    O(n · memory_length), and a model can carry these keys on from piece to piece of a text, as
    Transformer-XL does. There, queries at the end of a piece see more keys than those at its start;
    here all see as many, so that the length of pieces makes no difference.

    Args:
        num_heads: int, heads in the group.
        max_relative_distance: int, reach of the relative positions; None, the default, for none.
        attention_activation: "softmax", the default, or "sparsemax" or "entmax15", which give most
            keys a weight of exactly 0; see `rt_keras.ops.sparsemax` and `rt_keras.ops.entmax15`.
        memory_length: int, how many keys a causal query sees; None, the default, for all.
        **kwargs: keyword arguments of `PositionedHeads`, such as `relative_positions`, and of the
            base layer, such as `name` and `dtype`.

    Raises:
        ValueError: if `attention_activation` is unknown, `memory_length` is not a positive integer,
            or heads with one are called without `use_causal_mask`.

    Source: Vaswani et al. 2017, Attention Is All You Need, section 3.2; memory: Dai et al. 2019,
    Transformer-XL, section 3.2.

    >>> heads = FullHeads(2)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    strictly_causal = True
    cached_decoding = True
    reads_pieces = True
    steps_by_row = True
    runs_in_litert = True

    def __init__(
        self,
        num_heads,
        max_relative_distance=None,
        attention_activation="softmax",
        memory_length=None,
        **kwargs,
    ):
        super().__init__(num_heads, max_relative_distance, **kwargs)
        check_activation(attention_activation)
        self.attention_activation = attention_activation
        if memory_length is not None:
            positive_int("memory_length", memory_length)
        self.memory_length = memory_length

    @property
    def takes_attention_mask(self):
        """Whether there is no memory_length."""
        return self.memory_length is None

    @property
    def cached_cross_attention(self):
        """Whether there is no memory_length."""
        return self.memory_length is None

    @property
    def cache_grows(self):
        """Whether there is no memory_length."""
        return self.memory_length is None

    @property
    def needs_causal_mask(self):
        """Whether there is a memory_length: how many keys a query sees up to its own."""
        return self.memory_length is not None

    @property
    def can_be_dense(self):
        """Whether there is a memory_length: without it these heads are dense."""
        return self.memory_length is not None

    @property
    def _blocks(self):
        """The blocks of local attention that hold what a memory does."""
        block_size = ceil_div(self.memory_length, BLOCKS_OF_MEMORY)
        return {"block_size": block_size, "look_back": BLOCKS_OF_MEMORY}

    @property
    def _window(self):
        window = {**self._blocks, "sliding_window": self.memory_length}
        return {**window, "activation": self.attention_activation}

    def attend(self, **arguments):
        if self.memory_length is None:
            return full_attention(activation=self.attention_activation, **arguments)
        return local_attention(**self._window, **arguments)

    def fill_cache(self, *, query, count, **arguments):
        if self.memory_length is not None:
            return local_cache(**self._blocks, count=count, **arguments)
        # The step masks what lies behind its position.
        return full_cache(**arguments)

    def step(self, **arguments):
        if self.memory_length is not None:
            return local_step(**self._window, **arguments)
        return full_step(activation=self.attention_activation, **arguments)

    def piece(self, **arguments):
        if self.memory_length is not None:
            return local_piece(**self._window, **arguments)
        return full_piece(activation=self.attention_activation, **arguments)

    def cross_step(self, **arguments):
        return full_cross_step(activation=self.attention_activation, **arguments)

    def _described(self):
        memory = "" if self.memory_length is None else f" with memory_length={self.memory_length}"
        return f"{type(self).__name__}{memory}"

    def get_config(self):
        return {
            **super().get_config(),
            "attention_activation": self.attention_activation,
            "memory_length": self.memory_length,
        }

    @classmethod
    def from_config(cls, config):
        if config.get("memory_length") is None:
            # There are files of a version that took it, without effect.
            config = {**config, "dense_below": None}
        return super().from_config(config)
