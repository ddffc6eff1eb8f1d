"""Heads that see every n-th position."""

import keras

from rt_keras.layers.heads import Heads
from rt_keras.layers.key_sets import Strided


@keras.saving.register_keras_serializable(package="rt_keras")
class StridedHeads(Heads):
    """Heads whose queries see the keys at multiples of a stride from them.

    See `rt_keras.ops.strided_attention` for the equation. The cost is O(n² / stride).

    Args:
        num_heads: int, heads in the group.
        stride: int, positions from one key to the next.
        max_relative_distance: int, reach of the relative positions, in strides; None, the default,
            for none.
        num_persistent_keys: int, keys and values that each head learns and every query sees; None,
            the default, for none. See `rt_keras.ops.persistent_attention`.
        dense_below: int, see `HeadGroup`; None, the default, for never.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Raises:
        ValueError: if a size is not a positive integer.

    Source: Child et al. 2019, Generating Long Sequences with Sparse Transformers, section 4.3.

    >>> heads = StridedHeads(2, stride=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    declared = (Strided,)
