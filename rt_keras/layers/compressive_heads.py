"""Heads that attend to a window and to a compressed memory of earlier positions."""

import keras

from rt_keras.layers.heads import Heads
from rt_keras.layers.key_sets import CompressedWindow


@keras.saving.register_keras_serializable(package="rt_keras")
class CompressiveHeads(Heads):
    """Heads that attend to a window and a compressed memory under one softmax.

    Positions that leave the window are compressed: `compression_rate` positions become one entry,
    and a query attends to the last `compressed_length` entries. So the context is the window and
    the compression_rate · compressed_length positions before it. A model can keep both as a
    recurrent state from chunk to chunk of a text. See `rt_keras.ops.compressive_attention` for the
    equation. The cost is O(n · (block_size + compressed_length)).

    No gradient passes through the memory. A separate loss trains the kernels of "conv": attention
    to the entries of a block should return the same output as attention to the block.

    Args:
        num_heads: int, number of heads in the group.
        block_size: int, number of positions in a block, a multiple of `compression_rate`.
        compressed_length: int, number of entries that a query attends to, a multiple of block_size
            / compression_rate.
        compression_rate: int, number of positions per entry. Defaults to 4.
        look_back: int, number of preceding blocks that a query attends to, at least 1. Defaults to
            1.
        compression: string, "conv", "mean", "max" or "most_used"; see the op. Defaults to "conv".
        max_relative_distance: int or None, largest distance of the relative positions in the
            window. None disables them. Otherwise, each slot of the memory also has a learned
            vector. Defaults to None.
        reconstruction_weight: float, weight of the loss of "conv". Defaults to 1.
        dense_below: int or None; see `HeadGroup`. Defaults to None.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Raises:
        ValueError: if a number is out of range or not a required multiple, `compression` is
            unknown, or the heads are called without `use_causal_mask`.

    Source: Rae et al. 2020, Compressive Transformers for Long-Range Sequence Modelling, section 3.

    >>> heads = CompressiveHeads(2, block_size=8, compressed_length=4)
    >>> x = keras.random.normal([1, 2, 40, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 40, 8])
    """

    declared = (CompressedWindow,)
    fixed = {"num_persistent_keys": None}
