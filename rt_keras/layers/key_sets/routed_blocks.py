"""The set of the previous queries that are most similar to a query, near and in selected blocks."""

import dataclasses

import keras
import tensorflow as tf

from rt_keras.keys import AT_LEAST_1, key
from rt_keras.layers.key_sets.cluster import add_routed_kernel, biased
from rt_keras.layers.key_sets.selected_blocks import SelectedBlocks
from rt_keras.layers.key_sets.window import Window
from rt_keras.ops.attend import merge_sets
from rt_keras.ops.blocks import repeat_heads, size, sizes
from rt_keras.ops.convolution import causal_convolution, last_vectors
from rt_keras.ops.nearest.assign import normalize

# Before the names of the window's tensors in the state.
NEAR = "near_"


@keras.saving.register_keras_serializable(package="rt_keras")
@dataclasses.dataclass(frozen=True, repr=False)
class RoutedBlocks(SelectedBlocks):
    """The positions after the most similar queries: those of the window and of the best blocks.

    The key of position j is the query of position j - 1, as in a `Cluster` with `routed_key`
    "previous_query". With the convolution * over positions and layer normalization without weights,

    ```
    r_i = normalize((kernel * query)_i)
    logit_ij = scale r_i · r_(j - 1) / sqrt(depth) + bias
    ```

    A query sees all positions j of its window, and the `num_blocks` blocks with the highest scores
    outside it, see `rt_keras.ops.selected_blocks_attention`. A `Cluster` keeps its last positions
    and forgets others; blocks keep all of them, so a query finds the most similar one at any
    distance. The key of the first position is 0.

    The set requires causal attention and a `Window` without `sliding_window` whose `block_size` is
    a multiple of `segment_size`. It can also be combined with `FirstTokens` and `Persistent`.

    Args:
        block_size: int, number of positions in a block.
        num_blocks: int, number of blocks that a query attends to.
        segment_size, by_content, deviation_weight, num_nodes, memory_length: see `SelectedBlocks`.
        kernel_size: int, number of positions, up to its own, that are convolved into a routed
            query; 1 for no convolution. Defaults to 4.
        window, num_first_tokens: the keys of other sets; set by the union.

    Raises:
        ValueError: if a value is out of range, values are incompatible, there is no such `Window`,
            or the set cannot be combined with another one.

    Source: ours. Keys of the previous position: Olsson et al. 2022, In-context Learning and
    Induction Heads.

    >>> from rt_keras.layers import Heads
    >>> heads = Heads(2, [Window(8), RoutedBlocks(2, num_blocks=3, segment_size=8)])
    >>> x = keras.random.normal([1, 2, 40, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 40, 8])
    """

    name = "routed_blocks"
    needs_causal_mask = True
    # A query also sees the positions of its window.
    furthest_left_out = None

    kernel_size: int = key(4, "positions per routed query", AT_LEAST_1)
    # Routed queries have no positions.
    rotary_distance: int | None = dataclasses.field(default=None, init=False, repr=False)

    def beside(self, others):
        # FirstTokens has the first keys, not the first queries.
        return dataclasses.replace(super().beside(others), num_first_tokens=0)

    def keys_read(self, causal):
        return self._near.keys_read(causal) + super().keys_read(causal)

    @property
    def _near(self):
        """Returns the set of the positions in the window."""
        block_size, look_back = self.window
        return Window(block_size, look_back=look_back)

    def build(self, heads, depth, value_depth):
        heads.add_head_weight("routed_scale", initializer="ones")
        heads.add_head_weight("routed_bias")
        add_routed_kernel(heads, self.kernel_size, depth)

    def attend(self, heads, chunk, joins):
        near, far = self._parts(heads, chunk)
        found = [self._near.attend(heads, near, True), super().attend(heads, far, True)]
        return self._joined(heads, found, joins)

    def prefill_state(self, heads, chunk, max_length):
        near, far = self._parts(heads, chunk)
        state = super().prefill_state(heads, far, max_length)
        of_window = self._near.prefill_state(heads, near, max_length)
        return self._with(state, of_window, chunk)

    def read_chunk(self, heads, chunk, states, joins):
        return self._read("read_chunk", heads, chunk, states, joins)

    def decode_step(self, heads, chunk, states, joins):
        return self._read("decode_step", heads, chunk, states, joins)

    def _read(self, way, heads, chunk, states, joins):
        """Computes the next positions with a method of the window and of selected blocks."""
        of_blocks = dict(states[self.name])
        before = of_blocks.pop("asked")
        names = [name for name in of_blocks if name.startswith(NEAR)]
        of_window = {name.removeprefix(NEAR): of_blocks.pop(name) for name in names}
        near, far = self._parts(heads, chunk, before)
        window = self._near
        near, of_window = getattr(window, way)(heads, near, {window.name: of_window}, True)
        far, of_blocks = getattr(super(), way)(heads, far, {self.name: of_blocks}, True)
        after = self._with(of_blocks, of_window, chunk, before)
        return self._joined(heads, [near, far], joins), after

    def _parts(self, heads, chunk, before=None):
        """Returns the chunks of routed queries and keys for the window and for the blocks.

        Args:
            heads: the head group.
            chunk: `Chunk` of the queries.
            before: `[batch, heads, kernel_size, depth]`, the queries before the chunk. Defaults to
                None, for zeros.
        """
        query, real = chunk.query, chunk.query_mask
        if real is not None:
            query = tf.where(tf.cast(real, tf.bool)[:, None, :, None], query, 0)
        if before is None:
            batch, number, _, depth = sizes(query)
            before = tf.zeros([batch, number, self.kernel_size, depth], query.dtype)
        query = tf.concat([tf.cast(before[:, :, -1:], query.dtype), query], axis=2)
        if heads.routed_kernel is not None:
            kernel = tf.convert_to_tensor(heads.routed_kernel)
            query = causal_convolution(query, kernel, before=before[:, :, :-1])
        routed = normalize(query)
        part = chunk._replace(
            query=routed[:, :, 1:] * tf.cast(heads.routed_scale, routed.dtype)[:, None, None],
            key=routed[:, :, :-1],
            value=repeat_heads(chunk.value, size(routed, 1)),
            key_mask=chunk.mask_of_keys,
        )
        if chunk.seed is None:
            return part, part
        return (part._replace(seed=x) for x in tf.unstack(tf.random.split(chunk.seed, 2)))

    def _joined(self, heads, found, joins):
        """Merges the attention to the window and to the blocks."""
        output, logsumexp = biased(merge_sets(*found, return_logsumexp=True), heads.routed_bias)
        return (output, logsumexp) if joins else output

    def _with(self, of_blocks, of_window, chunk, before=None):
        """Returns the state of the set: those of its parts, and the last queries."""
        count = size(chunk.query, 2) if chunk.count is None else chunk.count
        asked = last_vectors(chunk.query, count, self.kernel_size, before=before)
        return {**of_blocks, **{NEAR + name: x for name, x in of_window.items()}, "asked": asked}
