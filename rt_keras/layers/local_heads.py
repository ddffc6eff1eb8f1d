"""Heads that see the blocks around their own position."""

import keras

from rt_keras.layers.head_group import positive_int
from rt_keras.layers.positioned_heads import PositionedHeads
from rt_keras.ops.blocks import ceil_div, size
from rt_keras.ops.decode import pad_to
from rt_keras.ops.entmax import check_activation
from rt_keras.ops.local import check_sliding_window, check_span, local_attention, per_dimension
from rt_keras.ops.local_decode import local_cache, local_cross_step, local_step
from rt_keras.ops.local_piece import local_piece


@keras.saving.register_keras_serializable(package="rt_keras")
class LocalHeads(PositionedHeads):
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
        sliding_window: int w, to see only keys less than w positions away, as in Longformer,
            Mistral and Gemma; at most `look_back` · `block_size` + 1. None, the default, to see
            whole blocks.
        attention_activation: "softmax", the default, or "sparsemax" or "entmax15", which give most
            keys a weight of exactly 0; see `rt_keras.ops.sparsemax` and `rt_keras.ops.entmax15`.
        adaptive_span: bool, whether each head learns how far it sees: the weights of keys further
            away than its span z, from 0 to the furthest key, fall to 0 over `span_ramp` positions.
            z starts at 0. All keys of the blocks are still computed: `spans` tells what smaller
            blocks would do. Defaults to False.
        span_ramp: int, positions in which a span ends. Defaults to 32.
        span_loss_weight: float λ; λ times the heads' mean z, in positions, is added to the model's
            loss. Defaults to 2e-6.
        **kwargs: keyword arguments of `PositionedHeads`, such as `relative_positions`, and of the
            base layer, such as `name` and `dtype`.

    Raises:
        ValueError: if a size is not a positive integer, a `look_back` is negative or there is not
            one for each dimension, blocks do not hold the sliding window, `attention_activation` is
            unknown, or `adaptive_span` comes with another one than "softmax", a grid or a
            `key_block_size`.

    Source: Roy et al. 2021, section 3.2; images: Parmar et al. 2018, section 3.1; sliding windows:
    Beltagy et al. 2020, section 3.1; spans: Sukhbaatar et al. 2019, section 2.2.

    >>> heads = LocalHeads(2, block_size=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    strictly_causal = True
    cached_cross_attention = True

    def __init__(
        self,
        num_heads,
        block_size,
        look_back=1,
        max_relative_distance=None,
        grid=None,
        key_block_size=None,
        sliding_window=None,
        attention_activation="softmax",
        adaptive_span=False,
        span_ramp=32,
        span_loss_weight=2e-6,
        **kwargs,
    ):
        super().__init__(num_heads, max_relative_distance, **kwargs)
        self.block_size = positive_int("block_size", block_size)
        self.grid = None if grid is None else tuple(positive_int("grid", side) for side in grid)
        if key_block_size is not None:
            positive_int("key_block_size", key_block_size)
        self.key_block_size = key_block_size
        self.look_back = self._checked_look_back(look_back)
        if self.relative_positions != "learned" and (grid or key_block_size):
            raise ValueError(
                f"relative_positions={self.relative_positions!r} cannot be combined with grid or "
                f"key_block_size. Received: grid={grid}, key_block_size={key_block_size}"
            )
        if sliding_window is not None:
            positive_int("sliding_window", sliding_window)
        check_sliding_window(sliding_window, block_size, look_back, grid, key_block_size)
        self.sliding_window = sliding_window
        check_activation(attention_activation)
        self.attention_activation = attention_activation
        check_span(adaptive_span, attention_activation, grid, key_block_size)
        if span_loss_weight < 0:
            raise ValueError(f"span_loss_weight must be at least 0. Received: {span_loss_weight}")
        self.adaptive_span = adaptive_span
        self.span_ramp = positive_int("span_ramp", span_ramp)
        self.span_loss_weight = span_loss_weight

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

    def build(self, query_shape, value_shape=None, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        if self.adaptive_span:
            # Shares of the largest distance: in positions, an optimizer's steps would be tiny.
            self.span_share = self.add_weight(
                name="span_share",
                shape=(self.num_heads,),
                initializer="zeros",
                dtype=self.state_dtype,
                autocast=False,
                constraint=lambda share: keras.ops.clip(share, 0.0, 1.0),
                regularizer=self._span_loss,
            )

    def _span_loss(self, share):
        """λ times the mean span, from the heads' shares of the largest."""
        loss = self.span_loss_weight * self._furthest * keras.ops.mean(keras.ops.absolute(share))
        # The dtype of Keras's losses, which it can only add up if they agree.
        return keras.ops.cast(loss, keras.config.floatx())

    @property
    def _furthest(self):
        """The largest distance at which a query sees a key."""
        look_back = per_dimension(self.look_back, (1,))[0]
        return (self.sliding_window or (look_back + 1) * self.block_size) - 1

    @property
    def spans(self):
        """How far each head sees with full weight, z in positions, `[heads]`, or None."""
        if not self.adaptive_span:
            return None
        return self._furthest * keras.ops.convert_to_tensor(self.span_share)

    @property
    def blocks(self):
        """The blocks that queries see, as the ops take them."""
        return {"block_size": self.block_size, "look_back": self.look_back, "grid": self.grid}

    @property
    def _window(self):
        return {
            **self.blocks,
            "sliding_window": self.sliding_window,
            "activation": self.attention_activation,
            "span": self.spans,
            "span_ramp": self.span_ramp,
        }

    @property
    def runs_in_litert(self):
        """Whether attention is softmax: the loop of others would be over five dimensions."""
        return self.attention_activation == "softmax"

    def attend(self, **arguments):
        return local_attention(**self._window, key_block_size=self.key_block_size, **arguments)

    @property
    def cache_grows(self):
        """Whether there is a grid, on which blocks in view lie far apart."""
        return self.grid is not None

    @property
    def takes_causal_mask(self):
        """Whether blocks of keys are those of queries, not of another sequence."""
        return self.key_block_size in (None, self.block_size)

    @property
    def cached_decoding(self):
        """Whether blocks of keys are those of queries."""
        return self.takes_causal_mask

    @property
    def reads_pieces(self):
        """Whether there is no grid, and blocks of keys are those of queries."""
        return self.grid is None and self.takes_causal_mask

    @property
    def steps_by_row(self):
        """Whether there is no grid."""
        return self.grid is None

    def fill_cache(self, *, query, **arguments):
        return local_cache(**self.blocks, **arguments)

    def step(self, **arguments):
        return local_step(**self._window, **arguments)

    def piece(self, **arguments):
        if self.grid is not None:
            return super().piece(**arguments)
        return local_piece(**self._window, **arguments)

    def cross_step(self, **arguments):
        return local_cross_step(**self._window, key_block_size=self.key_block_size, **arguments)

    def cross_attention_prefill(self, query, value, key, key_mask=None):
        # There must be as many blocks of queries as of keys.
        key_blocks = ceil_div(size(key, 2), self.key_block_size or self.block_size)
        length = key_blocks * self.block_size if self.key_block_size else size(key, 2)
        output = super().cross_attention_prefill(
            pad_to(query, length), value, key, key_mask=key_mask
        )
        return output[:, :, : size(query, 2)]

    def _described(self):
        keys = "" if self.key_block_size is None else f" with key_block_size={self.key_block_size}"
        return f"{type(self).__name__}{keys}"

    def get_config(self):
        return {
            **super().get_config(),
            "block_size": self.block_size,
            "look_back": self.look_back,
            "grid": self.grid,
            "key_block_size": self.key_block_size,
            "sliding_window": self.sliding_window,
            "attention_activation": self.attention_activation,
            "adaptive_span": self.adaptive_span,
            "span_ramp": self.span_ramp,
            "span_loss_weight": self.span_loss_weight,
        }
