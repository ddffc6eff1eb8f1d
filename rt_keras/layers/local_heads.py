"""Heads that see the blocks around their own position."""

import keras

from rt_keras.layers.heads import Heads
from rt_keras.layers.key_sets import Window


@keras.saving.register_keras_serializable(package="rt_keras")
class LocalHeads(Heads):
    """Heads whose queries see their own block of positions and those beside it.

    See `rt_keras.ops.local_attention` for the equation. The cost is O(n · block_size).

    Args:
        num_heads: int, heads in the group.
        block_size: int, positions in a block.
        look_back: int, blocks before its own that a query sees, and after it if attention is not
            causal; or a tuple with one int for each dimension of `grid`. Defaults to 1.
        max_relative_distance: int, reach of the relative positions; None, the default, for none.
            The furthest key is block_size * (look_back + 1) - 1 positions away.
        grid: tuple of ints, number of blocks along each dimension of an image whose positions are
            in the order of `rt_keras.ops.to_blocks`; None, the default, for sequences.
        key_block_size: int, positions in a block of keys from another sequence, which must have as
            many blocks as the queries; None, the default, if keys are as many as queries.
        sliding_window: int w, to see only keys less than w positions away, as in Longformer,
            Mistral and Gemma; at most `look_back` · `block_size` + 1. None, the default, to see
            whole blocks.
        attention_activation: "softmax", the default, or "sparsemax" or "entmax15", which give most
            keys a weight of exactly 0; see `rt_keras.ops.sparsemax` and `rt_keras.ops.entmax15`.
        adaptive_span: bool, whether each head learns how far it sees: the weights of keys further
            away than its span z, from 0 to the furthest key, fall to 0 over `span_ramp` positions.
            z starts at 0. All keys of the blocks are still computed: `spans` tells what smaller
            blocks would do. Defaults to False.
        span_ramp: int, positions in which a span ends. Defaults to 32.
        span_loss_weight: float λ; λ times the heads' mean z, in positions, is added to the model's
            loss. Defaults to 2e-6.
        relative_positions: "learned", the default, "sinusoidal" or "bucketed"; see
            `rt_keras.layers.key_sets.positioned.Positioned`.
        num_persistent_keys: int, keys and values that each head learns and every query sees; None,
            the default, for none. See `rt_keras.ops.persistent_attention`.
        dense_below: int, see `HeadGroup`; None, the default, for never.
        **kwargs: `dense_below` of `HeadGroup`, and base layer keyword arguments, such as `name` and
            `dtype`.

    Raises:
        ValueError: if a size is not a positive integer, a `look_back` is negative or there is not
            one for each dimension, blocks do not hold the sliding window, `attention_activation` is
            unknown, or `adaptive_span` comes with another one than "softmax", a grid or a
            `key_block_size`.

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
        """How far each head sees with full weight, z in positions, `[heads]`, or None."""
        return self.joined_sets[0].spans(self)
