"""The set of the blocks of keys with the highest scores for a query."""

import dataclasses

import keras

from rt_keras.keys import AT_LEAST_1, NOT_NEGATIVE, key
from rt_keras.layers.key_sets.at_distance import AtDistance
from rt_keras.layers.key_sets.first_tokens import FirstTokens
from rt_keras.layers.key_sets.key_set import in_union
from rt_keras.layers.key_sets.persistent import Persistent
from rt_keras.layers.key_sets.window import Window, window_among
from rt_keras.ops.content_blocks.attend import check_memory_length, selected_blocks_attention
from rt_keras.ops.content_blocks.cache import selected_blocks_cache, selected_blocks_chunk
from rt_keras.ops.content_blocks.select import NODE_SIZE


@keras.saving.register_keras_serializable(package="rt_keras")
@dataclasses.dataclass(frozen=True, repr=False)
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
        window, num_first_tokens: the keys of other sets; set by the union.

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

    name = "selected_blocks"
    reads_chunks = True
    always_with_logsumexp = True
    attention_op, chunk_op, step_op = map(
        staticmethod, (selected_blocks_attention, selected_blocks_chunk, selected_blocks_chunk)
    )
    takes_global_tokens = False

    block_size: int = key(dataclasses.MISSING, "number of keys in a block", AT_LEAST_1)
    num_blocks: int = key(dataclasses.MISSING, "number of blocks that a query sees", AT_LEAST_1)
    segment_size: int = key(256, "number of keys that are divided into blocks together", AT_LEAST_1)
    by_content: bool = key(True, "whether blocks have similar keys, not neighboring ones")
    deviation_weight: float = key(
        1.0, "weight of a block's standard deviation in its score", NOT_NEGATIVE
    )
    num_nodes: int | None = key(
        None, "number of nodes of 8 blocks that a query searches, null for all", AT_LEAST_1
    )
    memory_length: int | None = key(
        None, "last positions before the window that blocks come from, null for all", AT_LEAST_1
    )
    # Block size and look-back of the window, and the number of tokens of FirstTokens.
    window: tuple | None = in_union()
    num_first_tokens: int = dataclasses.field(default=0, repr=False, compare=False, kw_only=True)

    def check(self):
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
    def furthest_left_out(self):
        block_size, look_back = self.window
        return (look_back + 1) * block_size - 1

    @property
    def cache_grows(self):
        """Returns whether queries may select blocks of all previous segments."""
        return self.memory_length is None

    @property
    def needs_causal_mask(self):
        """Returns whether the blocks are those of the last positions before a window."""
        return self.memory_length is not None

    def beside(self, others):
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
        first = [x.num_first_tokens for x in others if isinstance(x, FirstTokens)]
        return dataclasses.replace(
            self, window=(window.block_size, window.look_back), num_first_tokens=sum(first)
        )

    def keys_read(self, causal):
        return self.num_blocks * self.block_size

    def prefill_state(self, heads, chunk, max_length):
        options = {"max_length": max_length, "window": self.window, **self._of_blocks}
        key = self.at_distance(heads, chunk).keys
        return selected_blocks_cache(key, chunk.value, chunk.count, **options)

    def op_options(self, heads, joins):
        names = ("num_blocks", "window", "deviation_weight", "num_nodes")
        return {**self._of_blocks, **{name: getattr(self, name) for name in names}}

    def described(self):
        memory = self.memory_length
        return "" if memory is None else f" with memory_length={memory}"

    @property
    def _of_blocks(self):
        """Returns the arguments of the ops that form blocks."""
        names = "block_size", "segment_size", "by_content", "num_first_tokens", "memory_length"
        return {name: getattr(self, name) for name in names}
