"""Heads that see a window, and a compressed memory of what came before it."""

import keras
import tensorflow as tf

from rt_keras.layers.head_group import HeadGroup, positive_int
from rt_keras.ops.blocks import repeat_heads, size
from rt_keras.ops.compressive import (
    COMPRESSIONS,
    compressive_attention,
    compressive_cache,
    compressive_piece,
    reconstruction_loss,
)


@keras.saving.register_keras_serializable(package="rt_keras")
class CompressiveHeads(HeadGroup):
    """Heads whose queries see a window and, under the same softmax, a compressed memory.

    What leaves the window is compressed: `compression_rate` positions become one entry, of which a
    query sees the last `compressed_length`. So it sees as far back as the blocks of its window and
    compression_rate · compressed_length positions before them, and a model can carry both on from
    piece to piece of a text. See `rt_keras.ops.compressive_attention` for the equation. The cost is
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

    strictly_causal = True
    needs_causal_mask = True
    cached_decoding = True
    reads_pieces = True
    # The entries of the memory have no single keys, and kernels are for values of their depth.
    returns_attention_scores = False

    def __init__(
        self,
        num_heads,
        block_size,
        compressed_length,
        compression_rate=4,
        look_back=1,
        compression="conv",
        max_relative_distance=None,
        reconstruction_weight=1.0,
        **kwargs,
    ):
        super().__init__(num_heads, max_relative_distance, **kwargs)
        self.block_size = positive_int("block_size", block_size)
        self.compressed_length = positive_int("compressed_length", compressed_length)
        self.compression_rate = positive_int("compression_rate", compression_rate)
        self.look_back = positive_int("look_back", look_back)
        if block_size % compression_rate:
            raise ValueError(
                f"block_size must be a multiple of compression_rate, {compression_rate}. Received: "
                f"block_size={block_size}"
            )
        entries = block_size // compression_rate
        if compressed_length % entries:
            raise ValueError(
                "compressed_length must be a multiple of block_size / compression_rate, "
                f"{entries}. Received: compressed_length={compressed_length}"
            )
        if compression not in COMPRESSIONS:
            raise ValueError(
                f"compression must be one of {COMPRESSIONS}. Received: compression={compression!r}"
            )
        if reconstruction_weight < 0:
            raise ValueError(
                "reconstruction_weight must be at least 0. Received: "
                f"reconstruction_weight={reconstruction_weight}"
            )
        self.compression = compression
        self.reconstruction_weight = reconstruction_weight
        self.key_kernel = self.value_kernel = self.memory_embeddings = None

    def build(self, query_shape, value_shape=None, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        if self.compression == "conv":
            self.key_kernel, self.value_kernel = (
                self.add_weight(
                    name=f"{name}_kernel",
                    shape=(self.num_heads, self.compression_rate, depth, depth),
                    initializer=_mean,
                )
                for name, depth in (
                    ("key", query_shape[-1]),
                    ("value", (value_shape or query_shape)[-1]),
                )
            )

    def build_relative_positions(self, depth, value_depth):
        super().build_relative_positions(depth, value_depth)
        self.memory_embeddings = self.add_weight(
            name="memory_embeddings",
            shape=(self.num_heads, self.compressed_length, depth),
            initializer=keras.initializers.RandomNormal(stddev=depth**-0.5),
        )

    def attend(self, *, query, key, value, causal, query_mask, key_mask, **options):
        output = compressive_attention(
            query, key, value, key_mask=key_mask, **self._memory(), **options
        )
        if query_mask is None:
            return output
        real = tf.cast(query_mask, tf.bool)[:, None, :, None]
        return tf.where(real, output, tf.zeros_like(output))

    def after_attention(self, *, query, key, value, query_mask, key_mask):
        if self.compression == "conv" and self.reconstruction_weight:
            loss = reconstruction_loss(
                query,
                key,
                value,
                key_mask,
                self._kernels(),
                block_size=self.block_size,
                compression_rate=self.compression_rate,
            )
            self.add_loss(tf.cast(self.reconstruction_weight * loss, keras.config.floatx()))

    def fill_cache(self, *, query, key, value, count, max_length):
        cache = compressive_cache(
            size(query, 0),
            self.num_heads,
            key.shape[3],
            value.shape[3],
            value.dtype,
            block_size=self.block_size,
            look_back=self.look_back,
            compressed_length=self.compressed_length,
            compression=self.compression,
        )
        inputs = {"query": query, "key": key, "value": value, **self._tables()}
        return self.piece(**inputs, cache=cache, position=0, count=count)[1]

    def piece(self, *, key, value, **arguments):
        key, value = (repeat_heads(x, self.num_heads) for x in (key, value))
        return compressive_piece(key=key, value=value, **self._memory(), **arguments)

    # A position compresses a block now and then; it is a piece like others.
    step = piece

    def _memory(self):
        """The arguments by which the ops compress."""
        places = self.memory_embeddings
        return {
            "block_size": self.block_size,
            "look_back": self.look_back,
            "compressed_length": self.compressed_length,
            "compression_rate": self.compression_rate,
            "compression": self.compression,
            "kernels": self._kernels(),
            "memory_embeddings": None if places is None else tf.convert_to_tensor(places),
        }

    def _kernels(self):
        if self.compression != "conv":
            return None
        return {
            "key": tf.convert_to_tensor(self.key_kernel),
            "value": tf.convert_to_tensor(self.value_kernel),
        }

    def get_config(self):
        return {
            **super().get_config(),
            "block_size": self.block_size,
            "compressed_length": self.compressed_length,
            "compression_rate": self.compression_rate,
            "look_back": self.look_back,
            "compression": self.compression,
            "reconstruction_weight": self.reconstruction_weight,
        }


def _mean(shape, dtype=None):
    """A kernel that gives the mean of the positions."""
    heads, rate, depth, _ = shape
    return keras.ops.broadcast_to(keras.ops.eye(depth, dtype=dtype) / rate, shape)
