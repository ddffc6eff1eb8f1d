"""The set of the blocks of keys with the highest scores for a query."""

import keras

from rt_keras.layers.abilities import Abilities
from rt_keras.layers.head_options import (
    number_from_0,
    positive_int,
    positive_int_or_none,
    true_or_false,
)
from rt_keras.layers.key_sets.at_distance import AtDistance
from rt_keras.layers.key_sets.first_tokens import FirstTokens
from rt_keras.layers.key_sets.key_set import only_output
from rt_keras.layers.key_sets.persistent import Persistent
from rt_keras.layers.key_sets.window import Window, window_among
from rt_keras.ops.content_blocks.attend import check_memory_length, selected_blocks_attention
from rt_keras.ops.content_blocks.cache import selected_blocks_cache, selected_blocks_chunk
from rt_keras.ops.content_blocks.select import NODE_SIZE, BlockOptions


@keras.saving.register_keras_serializable(package="rt_keras")
class SelectedBlocks(AtDistance):
    """The keys of the blocks with the highest scores for a query, outside its window.

    See `rt_keras.ops.selected_blocks_attention` for the equation. The set has no weights, and
    blocks consist of the keys of the text itself, so it works in models that were trained with full
    attention. It requires a `Window` without `sliding_window` whose `block_size` is a multiple of
    `segment_size`, and can also be combined with `FirstTokens` and `Persistent`. The cache keeps
    all keys and values; with a `memory_length`, only the last ones, so it does not grow with the
    text.

    Args:
        block_size: int, number of keys in a block.
        num_blocks: int, number of blocks that a query attends to.
        segment_size: int, number of keys in a segment, `block_size` times a power of 2. A segment
            is divided into blocks when it ends. Defaults to 256.
        by_content: bool, whether a block contains similar keys of a segment instead of neighboring
            ones. Defaults to True.
        deviation_weight: float, weight of a block's standard deviation in its score. Defaults to 1.
        num_nodes: int or None, number of nodes of 8 blocks that a query searches for blocks. None
            for all nodes. Defaults to None.
        memory_length: int or None, number of positions before its window from which a query may
            select blocks, a multiple of `segment_size`. Requires causal attention. None for all
            positions. Defaults to None.
        rotary_distance: int or None, distance between a query and the keys of the set for rotary
            embeddings; see `rt_keras.layers.key_sets.at_distance`. None for their own distances.
            Defaults to None.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Raises:
        ValueError: if a value is out of range, values are incompatible, there is no such `Window`,
            or another set contains the same keys.

    Source: ours; see `rt_keras.ops.selected_blocks_attention`.

    >>> from rt_keras.layers import Heads
    >>> from rt_keras.layers.key_sets import Window
    >>> heads = Heads(2, [Window(8), SelectedBlocks(2, num_blocks=3, segment_size=8)])
    >>> x = keras.random.normal([1, 2, 40, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 40, 8])
    """

    state_name = "selected_blocks"
    # Block size and look-back of the window of the union, and the number of its first tokens.
    window = None
    num_first_tokens = 0

    def __init__(
        self,
        block_size,
        num_blocks,
        segment_size=256,
        by_content=True,
        deviation_weight=1.0,
        num_nodes=None,
        memory_length=None,
        *,
        rotary_distance=None,
        **kwargs,
    ):
        super().__init__(rotary_distance, **kwargs)
        self.block_size = positive_int("block_size", block_size)
        self.num_blocks = positive_int("num_blocks", num_blocks)
        self.segment_size = positive_int("segment_size", segment_size)
        self.by_content = true_or_false("by_content", by_content)
        self.deviation_weight = number_from_0("deviation_weight", deviation_weight)
        self.num_nodes = positive_int_or_none("num_nodes", num_nodes)
        self.memory_length = positive_int_or_none("memory_length", memory_length)
        self._check_sizes()

    def _check_sizes(self):
        blocks = self.segment_size // self.block_size
        if self.segment_size % self.block_size or blocks & (blocks - 1):
            raise ValueError(
                "segment_size must be block_size times a power of 2. Received: "
                f"segment_size={self.segment_size}, block_size={self.block_size}"
            )
        check_memory_length(self.memory_length, self.segment_size)
        if self.num_nodes is None:
            return
        if blocks < NODE_SIZE:
            raise ValueError(
                f"num_nodes needs segments of at least {NODE_SIZE} blocks. Received: num_nodes="
                f"{self.num_nodes}, segment_size={self.segment_size}, block_size={self.block_size}"
            )
        if self.num_nodes * NODE_SIZE < self.num_blocks:
            raise ValueError(
                f"num_nodes times {NODE_SIZE} must be at least num_blocks. Received: num_nodes="
                f"{self.num_nodes}, num_blocks={self.num_blocks}"
            )

    @property
    def abilities(self):
        # With a memory_length, the blocks are those of the last positions before a window.
        return Abilities(
            bidirectional=self.memory_length is None,
            strictly_causal=True,
            cached=True,
            bounded=self.memory_length is not None,
            chunks=True,
            grouped=True,
            joined=True,
        )

    def join(self, others, share_qk):
        wrong = [x for x in others if not isinstance(x, (Window, FirstTokens, Persistent))]
        if wrong:
            raise ValueError(
                f"{type(self).__name__} can only be combined with Window, FirstTokens and "
                f"Persistent. Received: {', '.join(map(repr, wrong))}"
            )
        window = window_among(others)
        whole = window is not None and window.sliding_window is None
        if not whole or window.block_size % self.segment_size:
            raise ValueError(
                f"{type(self).__name__} needs a Window without sliding_window whose block_size is "
                "a multiple of segment_size. Received: segment_size="
                f"{self.segment_size} and {window or 'no Window'}"
            )
        self.window = window.block_size, window.look_back
        self.furthest_left_out = window.furthest
        first = [x.num_first_tokens for x in others if isinstance(x, FirstTokens)]
        self.num_first_tokens = sum(first)

    def keys_read(self, causal):
        return self.num_blocks * self.block_size

    def attend(self, inputs, return_logsumexp):
        result = selected_blocks_attention(
            *self._vectors(inputs), **self._options()._asdict(), **inputs.sequence_options()
        )
        return only_output(result, return_logsumexp)

    def prefill_state(self, inputs, max_length):
        _, key, value = self._vectors(inputs)
        return selected_blocks_cache(
            key, value, inputs.count, max_length=max_length, options=self._options()
        )

    def attend_chunk(self, inputs, state, return_logsumexp):
        result, state = selected_blocks_chunk(
            *self._vectors(inputs),
            state,
            inputs.position,
            self._options(),
            **inputs.chunk_options(),
        )
        return only_output(result, return_logsumexp), state

    def _vectors(self, inputs):
        return *self.at_distance(inputs), inputs.value

    def _options(self):
        return BlockOptions(
            *(self.block_size, self.num_blocks, self.segment_size, self.window, self.by_content),
            *(self.deviation_weight, self.num_nodes, self.num_first_tokens, self.memory_length),
        )

    def describe(self):
        memory = self.memory_length
        return super().describe() + ("" if memory is None else f" with memory_length={memory}")

    def get_config(self):
        return {
            **super().get_config(),
            "block_size": self.block_size,
            "num_blocks": self.num_blocks,
            "segment_size": self.segment_size,
            "by_content": self.by_content,
            "deviation_weight": self.deviation_weight,
            "num_nodes": self.num_nodes,
            "memory_length": self.memory_length,
        }
