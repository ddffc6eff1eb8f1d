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
        attention_activation: string, "softmax", "sparsemax" or "entmax15". The last two give most
            keys a weight of exactly 0; see `rt_keras.ops.sparsemax` and `rt_keras.ops.entmax15`.
            Defaults to "softmax".
        memory_length: int or None, number of keys that a causal query attends to. None for all
            keys. Defaults to None.
        relative_positions: string, "learned", "sinusoidal" or "bucketed"; see
            `rt_keras.layers.key_sets.positioned.Positioned`. Defaults to "learned".
        num_persistent_keys: int or None, number of learned keys and values per head, which every
            query attends to; see `rt_keras.ops.persistent_attention`. Defaults to None.
        dense_below: int or None; see `HeadGroup`. Defaults to None.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Raises:
        ValueError: if `attention_activation` is unknown, `memory_length` is not a positive integer,
            or heads with a `memory_length` are called without `use_causal_mask`.

    Source: Vaswani et al. 2017, Attention Is All You Need, section 3.2; memory: Dai et al. 2019,
    Transformer-XL, section 3.2.

    >>> heads = FullHeads(2)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    declared = (Everything,)
    fixed = {"position_biases": True}

    @classmethod
    def from_config(cls, config):
        if config.get("memory_length") is None:
            # Files of an earlier version may contain it, where it had no effect.
            config = {**config, "dense_below": None}
        return super().from_config(config)
