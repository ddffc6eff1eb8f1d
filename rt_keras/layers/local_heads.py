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
        attention_activation: string, "softmax", "sparsemax" or "entmax15". The last two give most
            keys a weight of exactly 0; see `rt_keras.ops.sparsemax` and `rt_keras.ops.entmax15`.
            Defaults to "softmax".
        adaptive_span: bool, whether each head learns its span z. The weights of keys beyond z fall
            to 0 over `span_ramp` positions. z starts at 0 and is at most the distance of the
            furthest key. All keys of the blocks are still computed; `spans` shows whether smaller
            blocks would suffice. Defaults to False.
        span_ramp: int, number of positions over which weights fall to 0. Defaults to 32.
        span_loss_weight: float λ. λ times the mean span of the heads, in positions, is added to the
            model's loss. Defaults to 2e-6.
        relative_positions: string, "learned", "sinusoidal" or "bucketed"; see
            `rt_keras.layers.key_sets.positioned.Positioned`. Defaults to "learned".
        num_persistent_keys: int or None, number of learned keys and values per head, which every
            query attends to; see `rt_keras.ops.persistent_attention`. Defaults to None.
        dense_below: int or None; see `HeadGroup`. Defaults to None.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Raises:
        ValueError: if a size is not a positive integer, `look_back` is negative or has the wrong
            number of dimensions, blocks are too small for the sliding window,
            `attention_activation` is unknown, or `adaptive_span` is combined with another
            activation than "softmax", a grid or a `key_block_size`.

    Source: Roy et al. 2021, section 3.2; images: Parmar et al. 2018, section 3.1; sliding windows:
    Beltagy et al. 2020, section 3.1; spans: Sukhbaatar et al. 2019, section 2.2.

    >>> heads = LocalHeads(2, block_size=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    declared = (Window,)
    fixed = {"position_biases": True}

    @property
    def spans(self):
        """Returns the largest distance with full weight of each head, z, `[heads]`, or None."""
        return self.joined_sets[0].spans(self)
