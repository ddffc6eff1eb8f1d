"""Heads that see the blocks around them."""

import keras

from rt_keras.layers.head_group import HeadGroup, positive_int
from rt_keras.ops.local import local_attention


@keras.saving.register_keras_serializable(package="rt_keras")
class LocalHeads(HeadGroup):
    """Heads whose queries see their own block of positions and those beside it.

    See `rt_keras.ops.local_attention` for the equation. The cost is O(n · block_size).

    Args:
        num_heads: heads in the group.
        block_size: positions in a block.
        look_back: blocks before its own that a query sees, and after it where attention is not
            causal.
        max_relative_distance: reach of the relative positions, or None for none; see `HeadGroup`.
            The furthest key is block_size * (look_back + 1) - 1 positions away.
        **kwargs: those of `keras.layers.Layer`.

    Raises:
        ValueError: if a size is not a positive integer, or `look_back` is negative.

    Source: Roy et al. 2021, section 3.2.

    >>> heads = LocalHeads(2, block_size=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    def __init__(self, num_heads, block_size, look_back=1, max_relative_distance=None, **kwargs):
        super().__init__(num_heads, max_relative_distance, **kwargs)
        self.block_size = positive_int("block_size", block_size)
        if isinstance(look_back, bool) or not isinstance(look_back, int) or look_back < 0:
            raise ValueError(
                f"look_back must be an integer of at least 0. Received: look_back={look_back!r}"
            )
        self.look_back = look_back

    def attend(self, query, key, value, options):
        return local_attention(
            query, key, value, block_size=self.block_size, look_back=self.look_back, **options
        )

    def get_config(self):
        return {
            **super().get_config(),
            "block_size": self.block_size,
            "look_back": self.look_back,
        }
