"""Heads that see everything."""

import keras

from rt_keras.layers.heads import Heads
from rt_keras.layers.key_sets import Everything


@keras.saving.register_keras_serializable(package="rt_keras")
class FullHeads(Heads):
    """Heads whose queries see every key, at a cost of O(n²).

    See `rt_keras.ops.full_attention` for the equation. The only group that takes any
    `attention_mask`.

    With a `memory_length`, causal queries see so many keys, their own the last: the cost is
    O(n · memory_length), and a model can carry these keys on from chunk to chunk of a text, as
    Transformer-XL does. There, queries at the end of a chunk see more keys than those at its start;
    here all see as many, so that the length of chunks makes no difference.

    Args:
        num_heads: int, heads in the group.
        max_relative_distance: int, reach of the relative positions; None, the default, for none.
        attention_activation: "softmax", the default, or "sparsemax" or "entmax15", which give most
            keys a weight of exactly 0; see `rt_keras.ops.sparsemax` and `rt_keras.ops.entmax15`.
        memory_length: int, how many keys a causal query sees; None, the default, for all.
        relative_positions: "learned", the default, "sinusoidal" or "bucketed"; see
            `rt_keras.layers.key_sets.positioned.Positioned`.
        num_persistent_keys: int, keys and values that each head learns and every query sees; None,
            the default, for none. See `rt_keras.ops.persistent_attention`.
        dense_below: int, see `HeadGroup`; None, the default, for never.
        **kwargs: `dense_below` of `HeadGroup`, and base layer keyword arguments, such as `name` and
            `dtype`.

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

    declared = (Everything,)
    fixed = {"position_biases": True}

    @classmethod
    def from_config(cls, config):
        if config.get("memory_length") is None:
            # There are files of a version that took it, without effect.
            config = {**config, "dense_below": None}
        return super().from_config(config)
