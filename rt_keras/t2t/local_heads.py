"""Local heads as in the authors' code."""

import keras

from rt_keras.layers.heads import Heads
from rt_keras.layers.key_sets import Window
from rt_keras.t2t.ops.local import local_attention, local_cross_step, local_step
from rt_keras.t2t.relative_tables import RelativeTables
from rt_keras.t2t.token_bias import TokenBias


@keras.saving.register_keras_serializable(package="rt_keras")
class T2TLocalHeads(RelativeTables, Heads, TokenBias):
    """Local heads as in the authors' code; see `rt_keras.layers.LocalHeads`.

    Relative distances assume that the block of queries is the last in its window, which is not true
    in several dimensions or without a causal mask. Padded queries are not masked, and the output of
    a query without keys is the mean of its window.

    Args:
        num_heads: int, number of heads in the group.
        block_size: int, number of positions in a block.
        look_back, grid, key_block_size: see `LocalHeads`.
        max_relative_distance: int or None, largest relative distance. None disables relative
            positions. Defaults to None.
        **kwargs: `token_bias` of `TokenBias`; and base layer keyword arguments.

    Raises:
        ValueError: if a size is not a positive integer, or `token_bias` is unknown.

    Source: the code of Roy et al. 2021.

    >>> heads = T2TLocalHeads(2, block_size=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    declared = (Window,)
    # Options that this dialect does not have.
    fixed = {
        "sliding_window": None,
        "relative_positions": "learned",
        "position_biases": True,
    }
    takes_global_tokens = False
    groups_queries = False
    # A chunk is processed position by position.
    reads_chunks = False

    @property
    def _blocks(self):
        return self.joined_sets[0].blocks

    def attend(self, *, causal, **arguments):
        return local_attention(
            **self._blocks,
            key_block_size=self.key_block_size,
            causal=causal,
            token_bias=self.bias_of_keys(causal),
            **self.tables(),
            **arguments,
        )

    def decode_step(self, *, cache, **arguments):
        tables = self.tables()
        output, state = local_step(cache=cache["local"], **self._blocks, **tables, **arguments)
        return output, {"local": state}

    def cross_step(self, **arguments):
        sizes = {**self._blocks, "key_block_size": self.key_block_size}
        return local_cross_step(**sizes, **self.tables(), **arguments)
