"""Heads that see the blocks around their own position."""

import keras

from rt_keras.layers.head_group import HeadGroup, positive_int
from rt_keras.ops.blocks import ceil_div, size
from rt_keras.ops.decode import pad_to
from rt_keras.ops.local import check_sliding_window, local_attention
from rt_keras.ops.local_decode import local_cache, local_cross_step, local_step


@keras.saving.register_keras_serializable(package="rt_keras")
class LocalHeads(HeadGroup):
    """Heads whose queries see their own block of positions and those beside it.

    See `rt_keras.ops.local_attention` for the equation. The cost is O(n · block_size).

    Args:
        num_heads: int, heads in the group.
        block_size: int, positions in a block.
        look_back: int, blocks before its own that a query sees, and after it if attention is not
            causal; or a tuple with one int for each dimension of `grid`. Defaults to 1.
        max_relative_distance: int, reach of the relative positions; None, the default, for none.
            The furthest key is block_size * (look_back + 1) - 1 positions away.
        grid: tuple of ints, number of blocks along each dimension of an image whose positions are
            in the order of `rt_keras.ops.to_blocks`; None, the default, for sequences.
        key_block_size: int, positions in a block of keys from another sequence, which must have as
            many blocks as the queries; None, the default, if keys are as many as queries.
        token_bias: None, "fixed" or "trainable"; see `HeadGroup`.
        sliding_window: int w, to see only keys less than w positions away, as in Longformer,
            Mistral and Gemma; at most `look_back` · `block_size` + 1. None, the default, to see
            whole blocks.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Raises:
        ValueError: if a size is not a positive integer, a `look_back` is negative or there is not
            one for each dimension, or blocks do not hold the sliding window.

    Source: Roy et al. 2021, section 3.2; images: Parmar et al. 2018, section 3.1; sliding windows:
    Beltagy et al. 2020, section 3.1.

    >>> heads = LocalHeads(2, block_size=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    cached_decoding = True
    cached_cross_attention = True
    runs_in_litert = True

    def __init__(
        self,
        num_heads,
        block_size,
        look_back=1,
        max_relative_distance=None,
        grid=None,
        key_block_size=None,
        token_bias=None,
        sliding_window=None,
        **kwargs,
    ):
        super().__init__(num_heads, max_relative_distance, token_bias, **kwargs)
        self.block_size = positive_int("block_size", block_size)
        self.grid = None if grid is None else tuple(positive_int("grid", side) for side in grid)
        if key_block_size is not None:
            positive_int("key_block_size", key_block_size)
        self.key_block_size = key_block_size
        self.look_back = self._checked_look_back(look_back)
        if sliding_window is not None:
            positive_int("sliding_window", sliding_window)
        check_sliding_window(sliding_window, block_size, look_back, grid, key_block_size)
        self.sliding_window = sliding_window

    def _checked_look_back(self, look_back):
        dimensions = 1 if self.grid is None else len(self.grid)
        alone = not isinstance(look_back, (list, tuple))
        counts = [look_back] * dimensions if alone else list(look_back)
        good = all(isinstance(x, int) and not isinstance(x, bool) and x >= 0 for x in counts)
        if not good or len(counts) != dimensions:
            of_grid = "" if self.grid is None else f", grid={self.grid}"
            raise ValueError(
                "look_back must be an integer of at least 0, or one for each dimension of grid. "
                f"Received: look_back={look_back!r}{of_grid}"
            )
        return look_back if alone else tuple(look_back)

    @property
    def blocks(self):
        """The blocks that queries see, as the ops take them."""
        return {"block_size": self.block_size, "look_back": self.look_back, "grid": self.grid}

    @property
    def _window(self):
        return {**self.blocks, "sliding_window": self.sliding_window}

    def attend(self, **arguments):
        return local_attention(**self._window, key_block_size=self.key_block_size, **arguments)

    def fill_cache(self, **arguments):
        return local_cache(**self.blocks, **arguments)

    def step(self, **arguments):
        return local_step(**self._window, **arguments)

    def cross_step(self, **arguments):
        return local_cross_step(**self._window, key_block_size=self.key_block_size, **arguments)

    def cross_attention_prefill(self, query, value, key, key_mask=None, token_bias=None):
        # There must be as many blocks of queries as of keys.
        key_blocks = ceil_div(size(key, 2), self.key_block_size or self.block_size)
        length = key_blocks * self.block_size if self.key_block_size else size(key, 2)
        output = super().cross_attention_prefill(
            pad_to(query, length), value, key, key_mask=key_mask, token_bias=token_bias
        )
        return output[:, :, : size(query, 2)]

    def get_config(self):
        return {
            **super().get_config(),
            "block_size": self.block_size,
            "look_back": self.look_back,
            "grid": self.grid,
            "key_block_size": self.key_block_size,
            "sliding_window": self.sliding_window,
        }
