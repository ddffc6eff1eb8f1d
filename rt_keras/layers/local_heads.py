"""Heads that attend to the blocks around their position."""

import keras

from rt_keras.layers.heads import Heads
from rt_keras.layers.key_sets import Window


@keras.saving.register_keras_serializable(package="rt_keras")
class LocalHeads(Heads):
    """Heads whose queries attend to their own block of positions and to the neighboring blocks.

    See `rt_keras.ops.local_attention` for the equation. The cost is O(n · block_size).

    Args:
        num_heads: int, number of heads in the group.
        block_size: int, number of positions in a block.
        look_back: int, number of preceding blocks that a query attends to, and of following blocks
            if attention is not causal; or a tuple with one number for each dimension of `grid`.
            Defaults to 1.
        max_relative_distance: int or None, largest distance of the relative positions. None
            disables them. The furthest key is block_size * (look_back + 1) - 1 positions away.
            Defaults to None.
        grid: tuple of ints or None, number of blocks along each dimension of an image whose
            positions are in the order of `rt_keras.ops.to_blocks`. None for sequences. Defaults to
            None.
        key_block_size: int or None, number of positions in a block of another sequence's keys. The
            sequence must have as many blocks as the queries. None if there are as many keys as
            queries. Defaults to None.
        sliding_window: int w or None. Queries attend only to keys less than w positions away, as in
            Longformer, Mistral and Gemma; at most `look_back` · `block_size` + 1. None for whole
            blocks. Defaults to None.
        relative_positions: string, "learned" or "sinusoidal"; see
            `rt_keras.layers.key_sets.positioned.Positioned`. Defaults to "learned".
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Raises:
        ValueError: if a size is not a positive integer, `look_back` is negative or has the wrong
            number of dimensions, or blocks are too small for the sliding window.

    Source: Roy et al. 2021, section 3.2; images: Parmar et al. 2018, section 3.1; sliding windows:
    Beltagy et al. 2020, section 3.1.

    >>> heads = LocalHeads(2, block_size=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    declared = (Window,)
    fixed = {"position_biases": True}
