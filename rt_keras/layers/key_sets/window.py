"""The keys around a query."""

import dataclasses

import keras
import tensorflow as tf

from rt_keras.keys import AT_LEAST_0, AT_LEAST_1, NOT_NEGATIVE, key, one_of
from rt_keras.layers.key_sets.positioned import Positioned
from rt_keras.ops.blocks import ceil_div
from rt_keras.ops.entmax import ACTIVATIONS
from rt_keras.ops.local import check_sliding_window, check_span, local_attention, per_dimension
from rt_keras.ops.local_chunk import local_chunk
from rt_keras.ops.local_decode import local_cache, local_cross_step, local_step


@keras.saving.register_keras_serializable(package="rt_keras")
@dataclasses.dataclass(frozen=True, repr=False)
class Window(Positioned):
    """The keys of a query's own block of positions and of those beside it.

    See `rt_keras.ops.local_attention` for the equation. Its fields are the arguments of
    `rt_keras.layers.LocalHeads`. What decoding keeps are the keys and values in view.

    Args:
        max_relative_distance: int, reach of the relative positions; None, the default, for none.
        relative_positions: "learned", the default, "sinusoidal" or "bucketed"; see
            `rt_keras.layers.key_sets.positioned.Positioned`.
        position_biases: bool, whether sinusoidal positions have biases of the queries. Defaults to
            True.
        block_size: int, positions in a block.
        look_back: int, blocks before its own that a query sees; or a tuple with one for each
            dimension of `grid`. Defaults to 1.
        sliding_window: int, positions up to its own that a query sees, None for whole blocks.
            Defaults to None.
        grid: tuple of ints, number of blocks along each dimension of an image; None, the default,
            for sequences.
        key_block_size: int, positions in a block of keys of another sequence; None, the default,
            for the same.
        attention_activation: "softmax", the default, or "sparsemax" or "entmax15", which give most
            keys a weight of exactly 0.
        adaptive_span: bool, whether each head learns how far it sees. Defaults to False.
        span_ramp: int, positions in which a span ends. Defaults to 32.
        span_loss_weight: float, weight of the loss of the mean span. Defaults to 2e-06.

    Raises:
        ValueError: if a value is out of range, or values do not go together.

    Source: Roy et al. 2021, section 3.2.

    >>> from rt_keras.layers import Heads
    >>> heads = Heads(2, [Window(4)])
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    name = "local"
    cached_cross_attention = True
    attention_op, chunk_op, step_op, cross_step_op = map(
        staticmethod, (local_attention, local_chunk, local_step, local_cross_step)
    )

    block_size: int = key(dataclasses.MISSING, "positions in a block", AT_LEAST_1)
    look_back: int = key(1, "blocks before its own that a query sees", AT_LEAST_0)
    sliding_window: int | None = key(
        None, "positions up to its own that a query sees, null for whole blocks", AT_LEAST_1
    )
    grid: tuple | None = None
    key_block_size: int | None = key(
        None, "positions in a block of keys of another sequence", AT_LEAST_1
    )
    attention_activation: str = key(
        "softmax", "how logits become the weights of keys", one_of(*ACTIVATIONS)
    )
    adaptive_span: bool = key(False, "whether each head learns how far it sees")
    span_ramp: int = key(32, "positions in which a span ends", AT_LEAST_1)
    span_loss_weight: float = key(2e-6, "weight of the loss of the mean span", NOT_NEGATIVE)

    def check(self):
        super().check()
        if isinstance(self.grid, list):
            object.__setattr__(self, "grid", tuple(self.grid))
        if isinstance(self.look_back, list):
            object.__setattr__(self, "look_back", tuple(self.look_back))
        sides = () if self.grid is None else self.grid
        if not all(_is_int(side) and side > 0 for side in sides):
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
        check_span(self.adaptive_span, self.attention_activation, self.grid, self.key_block_size)

    @property
    def takes_causal_mask(self):
        """Whether blocks of keys are those of queries, not of another sequence."""
        return self.key_block_size in (None, self.block_size)

    @property
    def cached_decoding(self):
        """Whether blocks of keys are those of queries."""
        return self.takes_causal_mask

    @property
    def cache_grows(self):
        """Whether there is a grid, on which blocks in view lie far apart."""
        return self.grid is not None

    @property
    def reads_chunks(self):
        """Whether there is no grid, and blocks of keys are those of queries."""
        return self.grid is None and self.takes_causal_mask

    @property
    def runs_in_litert(self):
        """Whether attention is softmax: the loop of others would be over five dimensions."""
        return self.attention_activation == "softmax"

    @property
    def blocks(self):
        """The blocks that queries see, as the ops take them."""
        return {"block_size": self.block_size, "look_back": self.look_back, "grid": self.grid}

    @property
    def furthest(self):
        """The largest distance at which a query sees a key."""
        look_back = per_dimension(self.look_back, (1,))[0]
        return (self.sliding_window or (look_back + 1) * self.block_size) - 1

    def build(self, heads, depth, value_depth):
        if self.adaptive_span:
            # Shares of the largest distance: in positions, an optimizer's steps would be tiny.
            heads.span_share = heads.add_weight(
                name="span_share",
                shape=(heads.num_heads,),
                initializer="zeros",
                dtype=heads.state_dtype,
                autocast=False,
                constraint=lambda share: keras.ops.clip(share, 0.0, 1.0),
                regularizer=self._span_loss,
            )

    def _span_loss(self, share):
        """λ times the mean span, from the heads' shares of the largest."""
        loss = self.span_loss_weight * self.furthest * keras.ops.mean(keras.ops.absolute(share))
        # The dtype of Keras's losses, which it can only add up if they agree.
        return keras.ops.cast(loss, keras.config.floatx())

    def covers(self, query_positions, key_positions):
        """Whether a window has a key, bool, of positions that are broadcast to each other."""
        if self.sliding_window is not None:
            return tf.abs(query_positions - key_positions) < self.sliding_window
        blocks = query_positions // self.block_size - key_positions // self.block_size
        return tf.abs(blocks) <= self.look_back

    def keys_read(self, causal):
        if self.grid is not None:
            return None
        seen = self.furthest + 1
        return seen if causal else 2 * seen - (1 if self.sliding_window else self.block_size)

    def spans(self, heads):
        """How far each head sees with full weight, z in positions, `[heads]`, or None."""
        if not self.adaptive_span:
            return None
        return self.furthest * keras.ops.convert_to_tensor(heads.span_share)

    def attend(self, heads, chunk, joins):
        return super().attend(heads, chunk, joins, key_block_size=self.key_block_size)

    def fill(self, heads, chunk, max_length):
        _, key = self.placed(heads, chunk.query, chunk.keys)
        return local_cache(key, chunk.value, chunk.count, max_length=max_length, **self.blocks)

    def cross_step(self, heads, chunk):
        return super().cross_step(heads, chunk, key_block_size=self.key_block_size)

    def cross_length(self, length, keys):
        # There must be as many blocks of queries as of keys.
        if not self.key_block_size:
            return keys
        return ceil_div(keys, self.key_block_size) * self.block_size

    def op_options(self, heads, chunk, joins):
        return {
            **self.blocks,
            "sliding_window": self.sliding_window,
            "activation": self.attention_activation,
            "span": self.spans(heads),
            "span_ramp": self.span_ramp,
            "relative_embeddings": self.table(heads, chunk.query.shape[3]),
            "return_logsumexp": joins,
        }

    def described(self):
        keys = self.key_block_size
        return "" if keys is None else f" with key_block_size={keys}"


def window_among(key_sets):
    """The window that a set beside it leaves out, or None if there is none.

    Args:
        key_sets: list of `KeySet`.

    Raises:
        ValueError: if the window has a grid, on which places in a sequence do not tell it.
    """
    window = next((other for other in key_sets if isinstance(other, Window)), None)
    if window is not None and (window.grid is not None or window.key_block_size is not None):
        raise ValueError(
            "A Window beside a set that leaves it out needs grid=None and key_block_size=None. "
            f"Received: grid={window.grid}, key_block_size={window.key_block_size}"
        )
    return window


def _is_int(x):
    return isinstance(x, int) and not isinstance(x, bool)
