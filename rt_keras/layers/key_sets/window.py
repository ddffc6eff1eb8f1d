"""The set of the keys around a query."""

import dataclasses

import keras
import tensorflow as tf

from rt_keras.keys import AT_LEAST_0, AT_LEAST_1, key
from rt_keras.layers.key_sets.positioned import Positioned
from rt_keras.ops.blocks import ceil_div
from rt_keras.ops.local.cached import local_cache, local_chunk, local_cross_step, local_step
from rt_keras.ops.local.windows import check_sliding_window, local_attention, per_dimension


@keras.saving.register_keras_serializable(package="rt_keras")
@dataclasses.dataclass(frozen=True, repr=False)
class Window(Positioned):
    """The keys of a query's own block of positions and of the neighboring blocks.

    See `rt_keras.ops.local_attention` for the equation. The fields are the arguments of
    `rt_keras.layers.LocalHeads`. The cache keeps only the keys and values in the window.

    Args:
        max_relative_distance: int or None, largest distance of the relative positions. None
            disables them. Defaults to None.
        relative_positions: string, "learned" or "sinusoidal"; see
            `rt_keras.layers.key_sets.positioned.Positioned`. Defaults to "learned".
        position_biases: bool, whether sinusoidal positions have query biases. Defaults to True.
        block_size: int, number of positions in a block.
        look_back: int, number of preceding blocks that a query attends to, and of following blocks
            if attention is not causal; or a tuple with one number for each dimension of `grid`.
            Defaults to 1.
        sliding_window: int w or None. Queries attend only to keys less than w positions away. None
            for whole blocks. Defaults to None.
        grid: tuple of ints or None, number of blocks along each dimension of an image. None for
            sequences. Defaults to None.
        key_block_size: int or None, number of positions in a block of another sequence's keys. None
            for `block_size`. Defaults to None.

    Raises:
        ValueError: if a value is out of range, or values are incompatible.

    Source: Roy et al. 2021, section 3.2.

    >>> from rt_keras.layers import Heads
    >>> heads = Heads(2, [Window(4)])
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    name = "local"
    cached_cross_attention = True
    per_dimension = ("look_back",)
    attention_op, chunk_op, step_op, cross_step_op = map(
        staticmethod, (local_attention, local_chunk, local_step, local_cross_step)
    )

    block_size: int = key(dataclasses.MISSING, "positions per block", AT_LEAST_1)
    look_back: int = key(1, "preceding blocks that a query attends to", AT_LEAST_0)
    sliding_window: int | None = key(
        None, "last keys that a query attends to, null for whole blocks", AT_LEAST_1
    )
    grid: tuple | None = None
    key_block_size: int | None = key(
        None, "positions per block of another sequence's keys", AT_LEAST_1
    )

    def check(self):
        super().check()
        for name in ("grid", "look_back"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        sides = () if self.grid is None else self.grid
        if not isinstance(sides, tuple) or not all(_is_int(side) and side > 0 for side in sides):
            raise ValueError(f"grid must be positive integers. Received: grid={self.grid!r}")
        counts = self.look_back if isinstance(self.look_back, tuple) else (self.look_back,)
        good = all(_is_int(count) and count >= 0 for count in counts)
        if not good or (isinstance(self.look_back, tuple) and len(counts) != (len(sides) or 1)):
            of_grid = "" if self.grid is None else f", grid={self.grid}"
            raise ValueError(
                "look_back must be an integer of at least 0, or one for each dimension of grid. "
                f"Received: look_back={self.look_back!r}{of_grid}"
            )
        if self.relative_positions != "learned" and (self.grid or self.key_block_size):
            raise ValueError(
                f"relative_positions={self.relative_positions!r} cannot be combined with grid or "
                f"key_block_size. Received: grid={self.grid}, key_block_size={self.key_block_size}"
            )
        check_sliding_window(
            self.sliding_window, self.block_size, self.look_back, self.grid, self.key_block_size
        )

    @property
    def takes_causal_mask(self):
        """Returns whether blocks of keys and queries have the same size."""
        return self.key_block_size in (None, self.block_size)

    cached_decoding = takes_causal_mask

    @property
    def cache_grows(self):
        """Returns whether there is a grid: its neighboring blocks are far apart in the sequence."""
        return self.grid is not None

    @property
    def reads_chunks(self):
        """Returns whether there is no grid, and blocks of keys and queries have the same size."""
        return self.grid is None and self.takes_causal_mask

    separates_documents = reads_chunks

    @property
    def blocks(self):
        """The arguments of the ops that define blocks."""
        return {"block_size": self.block_size, "look_back": self.look_back, "grid": self.grid}

    @property
    def furthest(self):
        """The largest distance between a query and a key that it attends to."""
        look_back = per_dimension(self.look_back, (1,))[0]
        return (self.sliding_window or (look_back + 1) * self.block_size) - 1

    def covers(self, query_positions, key_positions):
        """Returns whether keys are in a window, bool, for positions that are broadcast together."""
        if self.sliding_window is not None:
            return tf.abs(query_positions - key_positions) < self.sliding_window
        blocks = query_positions // self.block_size - key_positions // self.block_size
        return tf.abs(blocks) <= self.look_back

    def keys_read(self, causal):
        if self.grid is not None:
            return None
        seen = self.furthest + 1
        return seen if causal else 2 * seen - (1 if self.sliding_window else self.block_size)

    def attend(self, heads, chunk, joins):
        return super().attend(heads, chunk, joins, key_block_size=self.key_block_size)

    def prefill_state(self, heads, chunk, max_length):
        _, key = self.placed(heads, chunk.query, chunk.keys)
        return local_cache(key, chunk.value, chunk.count, max_length=max_length, **self.blocks)

    def cross_step(self, heads, chunk):
        return super().cross_step(heads, chunk, key_block_size=self.key_block_size)

    def cross_length(self, length, keys):
        # Queries and keys must have the same number of blocks.
        if not self.key_block_size:
            return keys
        return ceil_div(keys, self.key_block_size) * self.block_size

    def op_options(self, heads, joins):
        return {
            **self.blocks,
            "sliding_window": self.sliding_window,
            "relative_embeddings": self.table(heads),
            "return_logsumexp": joins,
        }

    def described(self):
        keys = self.key_block_size
        return "" if keys is None else f" with key_block_size={keys}"


def window_among(key_sets):
    """Returns the window whose keys another set leaves out, or None if there is no window.

    Args:
        key_sets: list of `KeySet`.

    Raises:
        ValueError: if the window has a grid or a `key_block_size`, so that positions in the
            sequence do not determine it.
    """
    window = next((other for other in key_sets if isinstance(other, Window)), None)
    if window is not None and (window.grid is not None or window.key_block_size is not None):
        raise ValueError(
            "A Window whose keys another set leaves out must have no grid and no key_block_size. "
            f"Received: grid={window.grid}, key_block_size={window.key_block_size}"
        )
    return window


def _is_int(x):
    return isinstance(x, int) and not isinstance(x, bool)
