"""The set of the previous queries that are most similar to a query, near and in selected blocks."""

import keras
import tensorflow as tf

from rt_keras.layers.head_options import positive_int
from rt_keras.layers.key_sets.cluster import add_bias, almost_identity
from rt_keras.layers.key_sets.key_set import only_output
from rt_keras.layers.key_sets.selected_blocks import SelectedBlocks
from rt_keras.layers.key_sets.window import Window
from rt_keras.ops.attend import merge_sets
from rt_keras.ops.blocks import repeat_heads, size, sizes
from rt_keras.ops.convolution import causal_convolution, last_vectors
from rt_keras.ops.nearest.assign import normalize


@keras.saving.register_keras_serializable(package="rt_keras")
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
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

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

    state_name = "routed_blocks"

    def __init__(
        self,
        block_size,
        num_blocks,
        segment_size=256,
        by_content=True,
        deviation_weight=1.0,
        num_nodes=None,
        memory_length=None,
        kernel_size=4,
        **kwargs,
    ):
        super().__init__(
            block_size,
            num_blocks,
            segment_size,
            by_content,
            deviation_weight,
            num_nodes,
            memory_length,
            **kwargs,
        )
        self.kernel_size = positive_int("kernel_size", kernel_size)

    @property
    def abilities(self):
        return super().abilities._replace(bidirectional=False)

    def join(self, others, share_qk):
        super().join(others, share_qk)
        # FirstTokens has the first keys, not the first queries.
        self.num_first_tokens = 0
        # A query also sees the positions of its window.
        self.furthest_left_out = None
        block_size, look_back = self.window
        self.near = Window(block_size, look_back=look_back, name="near")

    def keys_read(self, causal):
        return self.near.keys_read(causal) + super().keys_read(causal)

    def build(self, query_shape, value_shape):
        _, heads, _, depth = query_shape
        self.routed_scale = self.add_weight((heads,), "ones", name="routed_scale")
        self.routed_bias = self.add_weight((heads,), "zeros", name="routed_bias")
        self.routed_kernel = None
        if self.kernel_size > 1:
            shape = (heads, self.kernel_size, depth)
            self.routed_kernel = self.add_weight(shape, almost_identity, name="routed_kernel")
        self.near.build(query_shape, value_shape)
        super().build(query_shape, value_shape)

    def attend(self, inputs, return_logsumexp):
        near, far = self._routed(inputs)
        results = [self.near.attend(near, True), super().attend(far, True)]
        return self._merge(results, return_logsumexp)

    def prefill_state(self, inputs, max_length):
        near, far = self._routed(inputs)
        return {
            "far": super().prefill_state(far, max_length),
            "near": self.near.prefill_state(near, max_length),
            "queries": self._last_queries(inputs),
        }

    def attend_chunk(self, inputs, state, return_logsumexp):
        near, far = self._routed(inputs, state["queries"])
        near, near_state = self.near.attend_chunk(near, state["near"], True)
        far, far_state = super().attend_chunk(far, state["far"], True)
        queries = self._last_queries(inputs, state["queries"])
        after = {"far": far_state, "near": near_state, "queries": queries}
        return self._merge([near, far], return_logsumexp), after

    def attend_step(self, inputs, state, return_logsumexp):
        near, far = self._routed(inputs, state["queries"])
        near, near_state = self.near.attend_step(near, state["near"], True)
        far, far_state = super().attend_chunk(far, state["far"], True)
        queries = self._last_queries(inputs, state["queries"])
        after = {"far": far_state, "near": near_state, "queries": queries}
        return self._merge([near, far], return_logsumexp), after

    def _routed(self, inputs, last_queries=None):
        """Returns the inputs of the window and of the blocks: routed queries and keys.

        `last_queries`, `[batch, heads, kernel_size, depth]`, are those before; None for zeros.
        """
        query, real = inputs.query, inputs.query_mask
        if real is not None:
            query = tf.where(tf.cast(real, tf.bool)[:, None, :, None], query, 0)
        if last_queries is None:
            batch, heads, _, depth = sizes(query)
            last_queries = tf.zeros([batch, heads, self.kernel_size, depth], query.dtype)
        # [batch, heads, 1 + length, depth]
        query = tf.concat([tf.cast(last_queries[:, :, -1:], query.dtype), query], axis=2)
        if self.routed_kernel is not None:
            kernel = tf.convert_to_tensor(self.routed_kernel)
            query = causal_convolution(query, kernel, before=last_queries[:, :, :-1])
        routed = normalize(query)
        part = inputs._replace(
            query=routed[:, :, 1:] * tf.cast(self.routed_scale, routed.dtype)[:, None, None],
            key=routed[:, :, :-1],
            value=repeat_heads(inputs.value, size(routed, 1)),
            key_mask=inputs.mask_of_keys,
        )
        if inputs.seed is None:
            return part, part
        return [part._replace(seed=x) for x in tf.unstack(tf.random.split(inputs.seed, 2))]

    def _merge(self, results, return_logsumexp):
        """Merges the attention to the window and to the blocks."""
        result = add_bias(merge_sets(*results, return_logsumexp=True), self.routed_bias)
        return only_output(result, return_logsumexp)

    def _last_queries(self, inputs, before=None):
        count = size(inputs.query, 2) if inputs.count is None else inputs.count
        return last_vectors(inputs.query, count, self.kernel_size, before=before)

    def get_config(self):
        config = super().get_config()
        # Routed queries have no positions.
        del config["rotary_distance"]
        return {**config, "kernel_size": self.kernel_size}
