"""Local heads as the paper authors' code has them."""

import keras

from rt_keras.layers.cached_heads import CachedHeads
from rt_keras.layers.local_heads import LocalHeads
from rt_keras.t2t.ops.local import local_attention, local_cross_step, local_step
from rt_keras.t2t.relative_tables import RelativeTables
from rt_keras.t2t.token_bias import TokenBias

# Options of `LocalHeads`, and of its base, that this dialect does not know, with their defaults.
WITHOUT = {
    "sliding_window": None,
    "attention_activation": "softmax",
    "adaptive_span": False,
    "span_ramp": 32,
    "span_loss_weight": 2e-6,
    "relative_positions": "learned",
}


@keras.saving.register_keras_serializable(package="rt_keras")
class T2TLocalHeads(RelativeTables, LocalHeads, TokenBias):
    """Local heads as the paper authors' code has them; see `rt_keras.layers.LocalHeads`.

    Relative distances are those to a block of queries that stands last in its window, which is not
    so in more dimensions or without a causal mask. Padded queries are not masked, and a query
    without keys gets the mean of its window.

    Args:
        num_heads: int, heads in the group.
        block_size: int, positions in a block.
        **kwargs: `token_bias` of `TokenBias`; `look_back`, `max_relative_distance`, `grid` and
            `key_block_size` of `LocalHeads`; and base layer keyword arguments.

    Source: the code of Roy et al. 2021.

    >>> heads = T2TLocalHeads(2, block_size=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    takes_global_tokens = False
    # A piece is read position by position.
    reads_pieces = False
    steps_by_row = False

    def __init__(
        self,
        num_heads,
        block_size,
        look_back=1,
        max_relative_distance=None,
        grid=None,
        key_block_size=None,
        **kwargs,
    ):
        super().__init__(
            num_heads,
            block_size,
            look_back,
            max_relative_distance,
            grid,
            key_block_size,
            **kwargs,
        )
        for name, default in WITHOUT.items():
            value = getattr(self, name)
            if value != default:
                raise ValueError(
                    f"T2TLocalHeads have no {name}. Received: {name}={value!r}. Use LocalHeads"
                )

    def attend(self, *, causal, **arguments):
        return local_attention(
            **self.blocks,
            key_block_size=self.key_block_size,
            causal=causal,
            token_bias=self.bias_of_keys(causal),
            **arguments,
        )

    def step(self, **arguments):
        return local_step(**self.blocks, **arguments)

    def piece(self, **arguments):
        return CachedHeads.piece(self, **arguments)

    def cross_step(self, **arguments):
        return local_cross_step(**self.blocks, key_block_size=self.key_block_size, **arguments)
