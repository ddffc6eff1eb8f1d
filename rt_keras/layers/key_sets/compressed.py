"""The set of the keys around a query and of a compressed memory of earlier keys."""

import dataclasses

import keras
import tensorflow as tf

from rt_keras.keys import AT_LEAST_1, NOT_NEGATIVE, key, one_of
from rt_keras.layers.key_sets.by_ops import ByOps
from rt_keras.ops.compressive import (
    COMPRESSIONS,
    Memory,
    compressive_attention,
    reconstruction_loss,
)
from rt_keras.ops.compressive_chunk import compressive_cache, compressive_chunk
from rt_keras.ops.compressive_decode import compressive_step


@keras.saving.register_keras_serializable(package="rt_keras")
@dataclasses.dataclass(frozen=True, repr=False)
class CompressedWindow(ByOps):
    """The keys of the blocks up to a query's, and compressed entries for the preceding keys.

    This is one set because the content of the memory may depend on the window's attention. See
    `rt_keras.ops.compressive_attention` for the equation. The fields are the arguments of
    `rt_keras.layers.CompressiveHeads`.

    Args:
        block_size: int, number of positions in a block.
        compressed_length: int, number of memory entries that a query attends to.
        compression_rate: int, number of positions per entry. Defaults to 4.
        look_back: int, number of preceding blocks that a query attends to. Defaults to 1.
        compression: string, "conv", "mean", "max" or "most_used", the function that turns positions
            into an entry. Defaults to "conv".
        max_relative_distance: int or None, largest distance of the relative positions. None
            disables them. Defaults to None.
        reconstruction_weight: float, weight of the loss that trains the convolutions. Defaults to
            1.0.

    Raises:
        ValueError: if a value is out of range, or values are incompatible.

    Source: Rae et al. 2020, section 3.

    >>> from rt_keras.layers import Heads
    >>> x = keras.random.normal([1, 2, 20, 8])
    >>> Heads(2, [CompressedWindow(8, 4)])(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 20, 8])
    """

    name = "compressive"
    needs_causal_mask = True
    reads_chunks = True
    joins = False
    # Memory entries do not correspond to single keys, and kernels require values of their depth.
    returns_attention_scores = False
    always_causal = repeats_keys = True
    attention_op, chunk_op, step_op = map(
        staticmethod, (compressive_attention, compressive_chunk, compressive_step)
    )

    block_size: int = key(dataclasses.MISSING, "positions per block", AT_LEAST_1)
    compressed_length: int = key(
        dataclasses.MISSING, "memory entries that a query attends to", AT_LEAST_1
    )
    compression_rate: int = key(4, "positions per memory entry", AT_LEAST_1)
    look_back: int = key(1, "preceding blocks that a query attends to", AT_LEAST_1)
    compression: str = key("conv", "compression function", one_of(*COMPRESSIONS))
    max_relative_distance: int | None = key(
        None, "largest distance of the relative positions, null for none", AT_LEAST_1
    )
    reconstruction_weight: float = key(
        1.0, "weight of the loss that trains the convolutions", NOT_NEGATIVE
    )

    def check(self):
        if self.block_size % self.compression_rate:
            raise ValueError(
                f"block_size must be a multiple of compression_rate, {self.compression_rate}. "
                f"Received: block_size={self.block_size}"
            )
        entries = self.block_size // self.compression_rate
        if self.compressed_length % entries:
            raise ValueError(
                "compressed_length must be a multiple of block_size / compression_rate, "
                f"{entries}. Received: compressed_length={self.compressed_length}"
            )

    def build_positions(self, heads, depth):
        super().build_positions(heads, depth)
        if self.max_relative_distance is not None:
            entries = self.compressed_length
            heads.add_head_weight("memory_embeddings", entries, depth, initializer=depth**-0.5)

    def build(self, heads, depth, value_depth):
        if self.compression == "conv":
            for name, size in (("key_kernel", depth), ("value_kernel", value_depth)):
                shape = self.compression_rate, size, size
                heads.add_head_weight(name, *shape, initializer=_mean)

    def after_attention(self, heads, chunk):
        if self.compression == "conv" and self.reconstruction_weight:
            key, value = chunk.of_each_head()
            memory = Memory(**self.op_options(heads, chunk, False))
            loss = reconstruction_loss(chunk.query, key, value, chunk.mask_of_keys, memory)
            heads.add_loss(tf.cast(self.reconstruction_weight * loss, keras.config.floatx()))

    def prefill_state(self, heads, chunk, max_length):
        memory = self.op_options(heads, chunk, False)
        empty = compressive_cache(chunk.query, chunk.value, **memory)
        return self.read_chunk(heads, chunk, {self.name: empty}, False)[1]

    def op_options(self, heads, chunk, joins):
        places = None
        if self.max_relative_distance is not None:
            places = tf.convert_to_tensor(heads.memory_embeddings)
        return {
            "block_size": self.block_size,
            "look_back": self.look_back,
            "compressed_length": self.compressed_length,
            "compression_rate": self.compression_rate,
            "compression": self.compression,
            "kernels": self.kernels(heads),
            "relative_embeddings": self.relative_embeddings(heads),
            "memory_embeddings": places,
        }

    def kernels(self, heads):
        """Returns the convolutions of keys and values, or None for another compression."""
        if self.compression != "conv":
            return None
        return {
            "key": tf.convert_to_tensor(heads.key_kernel),
            "value": tf.convert_to_tensor(heads.value_kernel),
        }


def _mean(shape, dtype=None):
    """Initializes a kernel that computes the mean of the positions."""
    heads, rate, depth, _ = shape
    return keras.ops.broadcast_to(keras.ops.eye(depth, dtype=dtype) / rate, shape)
