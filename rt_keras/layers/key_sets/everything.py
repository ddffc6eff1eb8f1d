"""The set of all keys."""

import dataclasses

import keras

from rt_keras.keys import AT_LEAST_1, key
from rt_keras.layers.key_sets.positioned import Positioned
from rt_keras.layers.key_sets.window import Window
from rt_keras.ops.blocks import ceil_div
from rt_keras.ops.full import full_attention, full_cache, full_chunk, full_cross_step, full_step

# Number of blocks of a memory. More blocks waste fewer keys but make smaller matrices.
BLOCKS_OF_MEMORY = 4


@keras.saving.register_keras_serializable(package="rt_keras")
@dataclasses.dataclass(frozen=True, repr=False)
class Everything(Positioned):
    """All keys, at a cost of O(n²). With a `memory_length`, only the last ones.

    See `rt_keras.ops.full_attention` for the equation. The fields are the arguments of
    `rt_keras.layers.FullHeads`.

    Args:
        max_relative_distance: int or None, largest distance of the relative positions. None
            disables them. Defaults to None.
        relative_positions: string, "learned" or "sinusoidal"; see
            `rt_keras.layers.key_sets.positioned.Positioned`. Defaults to "learned".
        position_biases: bool, whether sinusoidal positions have query biases. Defaults to True.
        memory_length: int or None, number of keys that a query attends to, up to its position. None
            for all keys. Defaults to None.

    Raises:
        ValueError: if a value is out of range, or values are incompatible.

    Source: Vaswani et al. 2017, section 3.2.

    >>> from rt_keras.layers import Heads
    >>> heads = Heads(2, [Everything()])
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    name = "full"
    takes_attention_mask = True
    cached_cross_attention = True
    cache_grows = True
    reads_chunks = True
    separates_documents = True
    attention_op, chunk_op, step_op, cross_step_op = map(
        staticmethod, (full_attention, full_chunk, full_step, full_cross_step)
    )

    memory_length: int | None = key(
        None, "last keys that a query attends to, null for all", AT_LEAST_1
    )

    def beside(self, others):
        if self.memory_length is None:
            return self
        return LastKeys(
            block_size=ceil_div(self.memory_length, BLOCKS_OF_MEMORY),
            look_back=BLOCKS_OF_MEMORY,
            sliding_window=self.memory_length,
            max_relative_distance=self.max_relative_distance,
            relative_positions=self.relative_positions,
            position_biases=self.position_biases,
        )

    def attend(self, heads, chunk, joins):
        return super().attend(heads, chunk, joins, attention_mask=chunk.attention_mask)

    def prefill_state(self, heads, chunk, max_length):
        _, key = self.placed(heads, chunk.query, chunk.keys)
        # A step masks later positions.
        return full_cache(key, chunk.value, max_length=max_length)

    def op_options(self, heads, joins):
        return {"relative_embeddings": self.table(heads), "return_logsumexp": joins}


@dataclasses.dataclass(frozen=True, repr=False)
class LastKeys(Window):
    """The window that corresponds to a `memory_length`."""

    needs_causal_mask = True
    cached_cross_attention = False

    def described(self):
        return f" with memory_length={self.sliding_window}"
