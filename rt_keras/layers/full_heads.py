"""Heads with full attention."""

import keras

from rt_keras.layers.heads import Heads
from rt_keras.layers.key_sets import Everything


@keras.saving.register_keras_serializable(package="rt_keras")
class FullHeads(Heads):
    """Heads whose queries attend to every key, at a cost of O(n²).

    See `rt_keras.ops.full_attention` for the equation. This is the only head group that supports
    any `attention_mask`.

    With a `memory_length`, causal queries attend only to that many keys, up to their own. The cost
    is then O(n · memory_length), and a model can keep these keys as a recurrent state from chunk to
    chunk of a text, as Transformer-XL does. In Transformer-XL, queries at the end of a chunk attend
    to more keys than those at its start. Here the number is the same for all, so outputs do not
    depend on the length of the chunks.

    Args:
        num_heads: int, number of heads in the group.
        max_relative_distance: int or None, largest distance of the relative positions. None
            disables them. Defaults to None.
        memory_length: int or None, number of keys that a causal query attends to. None for all
            keys. Defaults to None.
        relative_positions: string, "learned" or "sinusoidal"; see
            `rt_keras.layers.key_sets.positioned.Positioned`. Defaults to "learned".
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Raises:
        ValueError: if `memory_length` is not a positive integer, or heads with a `memory_length`
            are called without `use_causal_mask`.

    Source: Vaswani et al. 2017, Attention Is All You Need, section 3.2; memory: Dai et al. 2019,
    Transformer-XL, section 3.2.

    >>> heads = FullHeads(2)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    declared = (Everything,)
    fixed = {"position_biases": True}
