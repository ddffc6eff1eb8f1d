"""Heads that see a window, and a compressed memory of what came before it."""

import keras

from rt_keras.layers.heads import Heads
from rt_keras.layers.key_sets import CompressedWindow


@keras.saving.register_keras_serializable(package="rt_keras")
class CompressiveHeads(Heads):
    """Heads whose queries see a window and, under the same softmax, a compressed memory.

    What leaves the window is compressed: `compression_rate` positions become one entry, of which a
    query sees the last `compressed_length`. So it sees as far back as the blocks of its window and
    compression_rate · compressed_length positions before them, and a model can carry both on from
    chunk to chunk of a text. See `rt_keras.ops.compressive_attention` for the equation. The cost is
    O(n · (block_size + compressed_length)).

    No gradient passes through the memory. The kernels of "conv" learn by a loss of their own, that
    a query should get from the entries of a block what it gets from the block.

    Args:
        num_heads: int, heads in the group.
        block_size: int, positions in a block, a multiple of `compression_rate`.
        compressed_length: int, entries that a query sees, a multiple of block_size /
            compression_rate.
        compression_rate: int, positions for each entry. Defaults to 4.
        look_back: int, blocks before its own that a query sees as they are, at least 1. Defaults
            to 1.
        compression: "conv", the default, "mean", "max" or "most_used"; see the op.
        max_relative_distance: int, reach of the relative positions in the window; None, the
            default, for none. With it, each place of the memory has a learnt vector too.
        reconstruction_weight: float, weight of the loss of "conv". Defaults to 1.
        dense_below: int, see `HeadGroup`; None, the default, for never.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Raises:
        ValueError: if a number is out of range or not such a multiple, `compression` is unknown,
            or heads are called without `use_causal_mask`.

    Source: Rae et al. 2020, Compressive Transformers for Long-Range Sequence Modelling, section 3.

    >>> heads = CompressiveHeads(2, block_size=8, compressed_length=4)
    >>> x = keras.random.normal([1, 2, 40, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 40, 8])
    """

    declared = (CompressedWindow,)
    fixed = {"num_persistent_keys": None}
