"""Heads of Native Sparse Attention, which join three branches with learned gates."""

import keras
import tensorflow as tf

from rt_keras.layers.head_group import HeadGroup
from rt_keras.layers.head_options import positive_int
from rt_keras.ops.native_sparse import native_sparse_attention
from rt_keras.ops.native_sparse_chunk import native_sparse_cache, native_sparse_chunk


@keras.saving.register_keras_serializable(package="rt_keras")
class NativeSparseHeads(HeadGroup):
    """Heads of Native Sparse Attention: means of all blocks, selected blocks, and a window.

    With x the input of the layer, and for each head and position

    ```
    gate_1, gate_2, gate_3 = sigmoid(W_g x)
    output = gate_1 compressed + gate_2 selected + gate_3 window
    ```

    See `rt_keras.ops.native_sparse_attention` for the three branches, the cost and what differs
    from the paper. A dense layer of `MultiHeadAttention` computes W_g x from its queries. The three
    branches share queries, keys and values. With grouped-query attention, the heads of a key head
    select the same blocks. The cache keeps all keys and values, and their means in each block, so
    there is no recurrent state. There are no attention weights for single keys, since a query sees
    keys in up to three branches whose weights do not add up to 1.

    Args:
        num_heads: int, number of heads in the group.
        block_size: int, number of positions in a block. Defaults to 64.
        num_blocks: int, number of blocks that a query selects, including its own, the previous one
            and the first one. Defaults to 16.
        window_size: int, number of positions in the window, including that of the query. Defaults
            to 512.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Raises:
        ValueError: if a size is not a positive integer, `max_relative_distance` or `dense_below` is
            given, or the heads are called without `use_causal_mask` or without gates.

    Source: Yuan et al. 2025, Native Sparse Attention: Hardware-Aligned and Natively Trainable
    Sparse Attention, section 3.

    >>> from rt_keras.layers import MultiHeadAttention
    >>> layer = MultiHeadAttention([NativeSparseHeads(4, 4, 3, 8)], num_key_value_heads=2)
    >>> x = keras.random.normal([1, 30, 16])
    >>> layer(x, x, use_causal_mask=True).shape
    TensorShape([1, 30, 16])
    """

    strictly_causal = True
    needs_causal_mask = True
    takes_relative_positions = False
    groups_queries = True
    cached_decoding = True
    cache_grows = True
    reads_chunks = True
    can_be_dense = False
    returns_attention_scores = False

    def __init__(self, num_heads, block_size=64, num_blocks=16, window_size=512, **kwargs):
        super().__init__(num_heads, **kwargs)
        self.block_size = positive_int("block_size", block_size)
        self.num_blocks = positive_int("num_blocks", num_blocks)
        self.window_size = positive_int("window_size", window_size)

    def num_gates(self, value_depth):
        # One for each branch.
        return 3

    def attend(self, *, causal, gates=None, **arguments):
        return native_sparse_attention(**arguments, **self._sizes, gates=self._opened(gates))

    def prefill_cache(self, *, query, key, value, count, max_length, gates=None):
        return native_sparse_cache(key, value, max_length=max_length, block_size=self.block_size)

    def decode_step(self, *, gates=None, **arguments):
        return native_sparse_chunk(**arguments, **self._sizes, gates=self._opened(gates))

    def read_chunk(self, **arguments):
        return self.decode_step(**arguments)

    @property
    def _sizes(self):
        return {name: getattr(self, name) for name in ("block_size", "num_blocks", "window_size")}

    def _opened(self, gates):
        """Returns the gates as weights of the branches."""
        if gates is None:
            raise ValueError(
                f"{self._described()} need gates, which MultiHeadAttention computes from its input"
            )
        return tf.sigmoid(gates)
