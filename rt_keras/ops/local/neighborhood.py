"""The rule of local attention: the keys that a query sees are those of the blocks near its own."""

import itertools
from typing import NamedTuple

import tensorflow as tf

from rt_keras.ops.blocks import ceil_div


class Neighborhood(NamedTuple):
    """The options of local attention, and the keys N(i) that they let a query see.

    See `rt_keras.ops.local_attention`. A `block_size` of None stands for one block of all
    positions.
    """

    block_size: int | None = None
    look_back: int | tuple = 1
    grid: tuple | None = None
    key_block_size: int | None = None
    sliding_window: int | None = None
    causal: bool = False

    def masks(self, queries, keys, blocks_apart=None):
        """Returns masks, all of which must be True for a query to see a key.

        Args:
            queries, keys: int, positions that are broadcast against each other.
            blocks_apart: int, distances of their blocks, broadcast against the positions. None if
                all keys are in blocks that are near enough.

        Returns:
            A list of bool tensors like the broadcast arguments.
        """
        masks = [keys <= queries] if self.causal else []
        if self.sliding_window is not None:
            masks.append(tf.abs(queries - keys) < self.sliding_window)
        if blocks_apart is not None:
            masks.append(tf.abs(blocks_apart) <= self.reach[0])
        return masks

    def blocks_apart(self, queries, keys):
        """Returns the distances of blocks of positions; None if all keys are in blocks near enough.

        A sliding window lies inside the blocks.
        """
        if self.block_size is None or self.sliding_window is not None:
            return None
        return queries // self.block_size - keys // self.block_size

    def ends(self, first, last, keys, at_any_position=False):
        """Returns the first key that queries from `first` to `last` see, and the end of theirs.

        Args:
            first, last: int scalars, positions.
            keys: int, number of keys.
            at_any_position: bool, whether blocks may begin at any position. Defaults to False.
        """
        start, end = 0, keys
        if self.block_size is not None:
            before, after = (count + at_any_position for count, *_ in self.sides)
            start = (first // self.block_size - before) * self.block_size
            end = (last // self.block_size + after + 1) * self.block_size
        if self.causal:
            end = tf.minimum(end, last + 1)
        return tf.maximum(start, 0), tf.minimum(end, keys)

    def width(self, keys):
        """Returns the number of keys in the blocks that a query sees, of `keys` in all."""
        if self.block_size is None:
            return keys
        width = (1 + sum(count for count, *_ in self.sides)) * self.block_size
        return min(width, keys) if isinstance(keys, int) else width

    @property
    def reach(self):
        """The number of blocks before its own that a query sees along each dimension, a tuple."""
        if isinstance(self.look_back, int):
            return (self.look_back,) * len(self.grid or (1,))
        return tuple(self.look_back)

    @property
    def sides(self):
        """The numbers of blocks before its own that a query sees, and of those after it; tuples."""
        before = self.reach
        return before, (0 if self.causal else before[0], *before[1:])

    @property
    def size_of_key_blocks(self):
        """The number of positions in a block of keys."""
        return self.key_block_size or self.block_size

    @property
    def is_one_sequence(self):
        """True if blocks of queries and of keys are the same positions of one sequence."""
        return self.grid is None and self.key_block_size is None

    def grid_of(self, keys):
        """Returns the number of blocks along each dimension, for a number of keys."""
        return self.grid or (ceil_div(keys, self.size_of_key_blocks),)

    def check(self):
        """Raises a ValueError if the options cannot be combined; see `local_attention`."""
        if self.causal and self.size_of_key_blocks != self.block_size:
            raise ValueError("Causal attention needs queries and keys of one sequence.")
        if self.sliding_window is None:
            return
        if not self.is_one_sequence:
            raise ValueError(
                "sliding_window cannot be combined with grid or key_block_size. "
                f"Received: sliding_window={self.sliding_window}, grid={self.grid}, "
                f"key_block_size={self.key_block_size}"
            )
        largest = self.reach[0] * self.block_size + 1
        if not 1 <= self.sliding_window <= largest:
            raise ValueError(
                f"sliding_window must be from 1 to look_back · block_size + 1, {largest}. "
                f"Received: {self.sliding_window}"
            )


def steps_of_window(before, after):
    """Returns the steps from a block to those in its window, tuples of ints in raster order.

    Args:
        before, after: tuples of ints, number of blocks before and after it along each dimension.
    """
    ranges = [range(-low, high + 1) for low, high in zip(before, after)]
    return list(itertools.product(*ranges))


def place_of_own_block(before, after):
    """Returns the number of blocks in a window before the block that it belongs to."""
    return steps_of_window(before, after).index((0,) * len(before))
