"""Heads that attend to every n-th position."""

import keras

from rt_keras.layers.heads import Heads
from rt_keras.layers.key_sets import Strided


@keras.saving.register_keras_serializable(package="rt_keras")
class StridedHeads(Heads):
    """Heads whose queries attend to the keys at multiples of a stride from them.

    See `rt_keras.ops.strided_attention` for the equation. The cost is O(n² / stride).

    Args:
        num_heads: int, number of heads in the group.
        stride: int, distance between keys, in positions.
        max_relative_distance: int or None, largest distance of the relative positions, in strides.
            None disables them. Defaults to None.
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
