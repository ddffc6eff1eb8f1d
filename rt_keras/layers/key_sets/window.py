"""The set of the keys around a query."""

import keras

from rt_keras.layers.abilities import Abilities
from rt_keras.layers.head_options import positive_int, positive_int_or_none
from rt_keras.layers.key_sets.key_set import KeySet
from rt_keras.layers.relative_positions import make_relative_positions
from rt_keras.ops.blocks import ceil_div
from rt_keras.ops.local.cached import local_cache, local_chunk, local_cross_step, local_step
from rt_keras.ops.local.neighborhood import Neighborhood
from rt_keras.ops.local.windows import local_attention

# Number of blocks of `LastKeys`. More blocks waste fewer keys but make smaller matrices.
BLOCKS_OF_LAST_KEYS = 4


@keras.saving.register_keras_serializable(package="rt_keras")
class Window(KeySet):
    """The keys of a query's own block of positions and of the neighboring blocks.

    See `rt_keras.ops.local_attention` for the equation. The cache keeps only the keys and values in
    the window.

    Args:
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
        max_relative_distance: int or None, largest distance of the relative positions. None
            disables them. Defaults to None.
        relative_positions: string, "learned" or "sinusoidal"; see
            `rt_keras.layers.relative_positions.RelativePositions`. Defaults to "learned".
        position_biases: bool, whether sinusoidal positions have query biases. Defaults to True.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Raises:
        ValueError: if a value is out of range, or values are incompatible.

    Source: Roy et al. 2021, section 3.2.

    >>> from rt_keras.layers import Heads
    >>> heads = Heads(2, [Window(4)])
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    state_name = "local"

    def __init__(
        self,
        block_size,
        look_back=1,
        sliding_window=None,
        grid=None,
        key_block_size=None,
        *,
        max_relative_distance=None,
        relative_positions="learned",
        position_biases=True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.block_size = positive_int("block_size", block_size)
        self.look_back = tuple(look_back) if isinstance(look_back, list) else look_back
        self.grid = tuple(grid) if isinstance(grid, list) else grid
        self.sliding_window = positive_int_or_none("sliding_window", sliding_window)
        self.key_block_size = positive_int_or_none("key_block_size", key_block_size)
        self.max_relative_distance = max_relative_distance
        self.relative_positions = relative_positions
        self.position_biases = position_biases
        self.positions = make_relative_positions(
            max_relative_distance, relative_positions, position_biases
        )
        self._check_grid()
        if relative_positions != "learned" and (grid or key_block_size):
            raise ValueError(
                f"relative_positions={relative_positions!r} cannot be combined with grid or "
                f"key_block_size. Received: grid={grid}, key_block_size={key_block_size}"
            )
        self.neighborhood.check()

    def _check_grid(self):
        sides = () if self.grid is None else self.grid
        if not isinstance(sides, tuple) or not all(_is_int(side) and side > 0 for side in sides):
            raise ValueError(f"grid must be positive integers. Received: grid={self.grid!r}")
        is_tuple = isinstance(self.look_back, tuple)
        counts = self.look_back if is_tuple else (self.look_back,)
        good = all(_is_int(count) and count >= 0 for count in counts)
        if not good or (is_tuple and len(counts) != (len(sides) or 1)):
            with_grid = "" if self.grid is None else f", grid={self.grid}"
            raise ValueError(
                "look_back must be an integer of at least 0, or one for each dimension of grid. "
                f"Received: look_back={self.look_back!r}{with_grid}"
            )

    @property
    def abilities(self):
        # Blocks of keys and queries of the same size belong to one sequence. The neighboring blocks
        # of a grid are far apart in it.
        one_size = self.key_block_size in (None, self.block_size)
        in_order = one_size and self.grid is None
        return Abilities(
            causal=one_size,
            strictly_causal=True,
            cached=one_size,
            bounded=self.grid is None,
            chunks=in_order,
            across=True,
            documents=in_order,
            grouped=True,
            joined=True,
            global_tokens=True,
        )

    @property
    def neighborhood(self):
        """The keys around a query, a `rt_keras.ops.local.neighborhood.Neighborhood`."""
        blocks = self.block_size, self.look_back, self.grid, self.key_block_size
        return Neighborhood(*blocks, self.sliding_window)

    @property
    def furthest(self):
        """The largest distance between a query and a key that it attends to."""
        blocks = self.neighborhood.reach[0] + 1
        return (self.sliding_window or blocks * self.block_size) - 1

    def covers(self, query_positions, key_positions):
        """Returns whether keys are in a window, bool, for positions that are broadcast together."""
        places = query_positions, key_positions
        (mask,) = self.neighborhood.masks(*places, self.neighborhood.blocks_apart(*places))
        return mask

    def keys_read(self, causal):
        if self.grid is not None:
            return None
        width = self.furthest + 1
        return width if causal else 2 * width - (1 if self.sliding_window else self.block_size)

    def attend(self, inputs, return_logsumexp):
        return local_attention(
            *self._vectors(inputs),
            block_size=self.block_size,
            look_back=self.look_back,
            grid=self.grid,
            key_block_size=self.key_block_size,
            sliding_window=self.sliding_window,
            relative_embeddings=self.position_table(),
            return_logsumexp=return_logsumexp,
            **inputs.sequence_options(),
        )

    def prefill_state(self, inputs, max_length):
        _, key, value = self._vectors(inputs)
        return local_cache(key, value, inputs.count, self.neighborhood, max_length=max_length)

    def attend_chunk(self, inputs, state, return_logsumexp):
        return local_chunk(
            *self._vectors(inputs),
            state,
            inputs.position,
            self.neighborhood,
            relative_embeddings=self.position_table(),
            return_logsumexp=return_logsumexp,
            **inputs.chunk_options(),
        )

    def attend_step(self, inputs, state, return_logsumexp):
        return local_step(
            *self._vectors(inputs),
            state,
            inputs.position,
            self.neighborhood,
            count=inputs.count,
            relative_embeddings=self.position_table(),
            return_logsumexp=return_logsumexp,
        )

    def attend_across(self, inputs):
        return local_cross_step(
            *self._vectors(inputs),
            inputs.position,
            self.neighborhood,
            key_mask=inputs.key_mask,
            relative_embeddings=self.position_table(),
        )

    def _vectors(self, inputs):
        return *self.place(inputs.query, inputs.keys), inputs.value

    def cross_length(self, length, keys):
        # Queries and keys must have the same number of blocks.
        if not self.key_block_size:
            return keys
        return ceil_div(keys, self.key_block_size) * self.block_size

    def describe(self):
        keys = self.key_block_size
        return super().describe() + ("" if keys is None else f" with key_block_size={keys}")

    def get_config(self):
        return {
            **super().get_config(),
            "block_size": self.block_size,
            "look_back": self.look_back,
            "sliding_window": self.sliding_window,
            "grid": self.grid,
            "key_block_size": self.key_block_size,
            "max_relative_distance": self.max_relative_distance,
            "relative_positions": self.relative_positions,
            "position_biases": self.position_biases,
        }


@keras.saving.register_keras_serializable(package="rt_keras")
class LastKeys(Window):
    """The last keys up to a query: a sliding window of a given length, for causal attention.

    Args:
        memory_length: int, number of keys that a query attends to, up to its position.
        max_relative_distance, relative_positions, position_biases: see `Window`.
        **kwargs: base layer keyword arguments.

    Raises:
        ValueError: if a value is out of range, or values are incompatible.

    Source: Dai et al. 2019, Transformer-XL, section 3.2.

    >>> from rt_keras.layers import Heads
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> Heads(2, [LastKeys(4)])(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    def __init__(
        self,
        memory_length,
        *,
        max_relative_distance=None,
        relative_positions="learned",
        position_biases=True,
        **kwargs,
    ):
        super().__init__(
            ceil_div(positive_int("memory_length", memory_length), BLOCKS_OF_LAST_KEYS),
            look_back=BLOCKS_OF_LAST_KEYS,
            sliding_window=memory_length,
            max_relative_distance=max_relative_distance,
            relative_positions=relative_positions,
            position_biases=position_biases,
            **kwargs,
        )
        self.memory_length = memory_length

    @property
    def abilities(self):
        return super().abilities._replace(bidirectional=False, across=False)

    def get_config(self):
        config = KeySet.get_config(self)
        names = ("max_relative_distance", "relative_positions", "position_biases")
        options = {name: getattr(self, name) for name in names}
        return {**config, "memory_length": self.memory_length, **options}


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
