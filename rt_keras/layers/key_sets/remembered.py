"""The set of remembered cluster members."""

import keras
import tensorflow as tf

from rt_keras.layers.abilities import Abilities
from rt_keras.layers.head_options import one_of, positive_int, positive_int_or_none
from rt_keras.layers.key_sets.cluster import Cluster
from rt_keras.layers.key_sets.key_set import KeySet, only_output, positions_of_chunk
from rt_keras.layers.key_sets.window import Window
from rt_keras.ops.blocks import shift_right, size
from rt_keras.ops.convolution import last_vectors
from rt_keras.ops.routing_memory import EVICTIONS, empty_memory, memory_chunk, memory_step


@keras.saving.register_keras_serializable(package="rt_keras")
class Remembered(KeySet):
    """The members in the memory of a query's cluster that have the highest logits.

    The set requires a `Cluster` with `routed_key` "previous_query", whose routing it shares. It
    leaves out the last `window_size` members, which the `Cluster` contains. See
    `rt_keras.ops.routing_memory.memory_chunk` for the equation.

    Args:
        memory_length: int, number of members in the memory of a cluster.
        memory_keys: int, maximum number of these members that a query attends to. Defaults to 32.
        eviction: string, policy for a full memory: "oldest", "random", "least_attended" or
            "merged"; see the op. Defaults to "oldest".
        memory_block_size: int or None, number of positions between updates of the memory. None for
            the `block_size` of the `Window`. Defaults to None.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Raises:
        ValueError: if a value is out of range, or values are incompatible.

    Source: ours; see the op.

    >>> from rt_keras.layers import Heads
    >>> sets = [Window(4), Cluster(2, window_size=4), Remembered(8, memory_keys=2)]
    >>> x = keras.random.normal([1, 2, 20, 8])
    >>> Heads(2, sets)(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 20, 8])
    """

    state_name = "memory"
    abilities = Abilities(
        bidirectional=False,
        strictly_causal=True,
        cached=True,
        chunks=True,
        grouped=True,
        joined=True,
        normalized=False,
    )

    def __init__(
        self, memory_length, memory_keys=32, eviction="oldest", memory_block_size=None, **kwargs
    ):
        super().__init__(**kwargs)
        self.memory_length = positive_int("memory_length", memory_length)
        self.memory_keys = positive_int("memory_keys", memory_keys)
        self.eviction = one_of("eviction", eviction, *EVICTIONS)
        self.memory_block_size = positive_int_or_none("memory_block_size", memory_block_size)

    def join(self, others, share_qk):
        cluster = next((other for other in others if isinstance(other, Cluster)), None)
        window = next((other for other in others if isinstance(other, Window)), None)
        if cluster is None or not cluster.shifts_keys or not cluster.scaled:
            raise ValueError(
                "Remembered needs a Cluster with routed_key='previous_query' and scaled=True. "
                f"Received: {cluster}"
            )
        block_size = self.memory_block_size
        if block_size is None:
            if window is None:
                raise ValueError("memory_block_size must be given without a Window. Received: None")
            block_size = window.block_size
        if self.memory_length < block_size:
            raise ValueError(
                "memory_length must be at least memory_block_size. Received: "
                f"memory_length={self.memory_length}, memory_block_size={block_size}"
            )
        self.memory_block_size = block_size
        # The functions of the cluster, since only the union owns its layer.
        self.num_clusters, self.window_size = cluster.num_clusters, cluster.window_size
        self.kernel_size = cluster.kernel_size
        self.routing, self.routed_query = cluster.routing, cluster.routed_query
        self.add_bias = cluster.add_bias

    def attend(self, inputs, return_logsumexp):
        output, logsumexp, _ = self._attend_from_start(inputs)
        return only_output(self.add_bias((output, logsumexp)), return_logsumexp)

    def prefill_state(self, inputs, max_length):
        *_, memory = self._attend_from_start(inputs)
        last_queries = last_vectors(inputs.query, inputs.count, self.kernel_size)
        return {**memory, "last_queries": last_queries}

    def _attend_from_start(self, inputs):
        """Attends to a memory that is empty before the sequence; returns it too."""
        routed = self.routed_query(inputs)
        memory = empty_memory(
            routed,
            inputs.value,
            self.num_clusters,
            memory_length=self.memory_length,
            block_size=self.memory_block_size,
            eviction=self.eviction,
        )
        return memory_chunk(
            routed,
            shift_right(routed, 2),
            inputs.value,
            memory,
            0,
            are_keys=_are_keys(size(routed, 2), inputs.query_mask, inputs.mask_of_keys),
            **inputs.chunk_options(),
            **self._options(),
        )

    def attend_chunk(self, inputs, state, return_logsumexp):
        *arguments, options, queries = self._arguments_after(inputs, state)
        options |= {"dropout": inputs.dropout, "seed": inputs.seed}
        output, logsumexp, memory = memory_chunk(*arguments, **options)
        result = only_output(self.add_bias((output, logsumexp)), return_logsumexp)
        return result, {**memory, "last_queries": queries}

    def attend_step(self, inputs, state, return_logsumexp):
        *arguments, options, queries = self._arguments_after(inputs, state)
        output, logsumexp, memory = memory_step(*arguments, **options)
        result = only_output(self.add_bias((output, logsumexp)), return_logsumexp)
        return result, {**memory, "last_queries": queries}

    def _arguments_after(self, inputs, state):
        """Returns the arguments of the ops for the next positions, and the last queries."""
        memory = {name: x for name, x in state.items() if name != "last_queries"}
        query, last, length = inputs.query, state["last_queries"], size(inputs.query, 2)
        # The routed keys are the routed queries of the positions before.
        longer = tf.concat([tf.cast(last[:, :, -1:], query.dtype), query], axis=2)
        routed = self.routed_query(inputs._replace(query=longer), last[:, :, :-1])
        count = length if inputs.count is None else inputs.count
        options = {
            "are_keys": positions_of_chunk(inputs, length) > 0,
            "count": inputs.count,
            **self._options(),
        }
        after = last_vectors(query, count, self.kernel_size, before=last)
        queries, keys = routed[:, :, 1:], routed[:, :, :-1]
        return queries, keys, inputs.value, memory, inputs.position, options, after

    def _options(self):
        return {
            "assignment": self.routing(),
            "window_size": self.window_size,
            "memory_keys": self.memory_keys,
            "eviction": self.eviction,
        }

    def get_config(self):
        return {
            **super().get_config(),
            "memory_length": self.memory_length,
            "memory_keys": self.memory_keys,
            "eviction": self.eviction,
            "memory_block_size": self.memory_block_size,
        }


def _are_keys(length, query_mask, key_mask):
    """Returns which positions have a key: real positions that follow a real query."""
    follows = (tf.range(length) > 0)[None]
    if key_mask is not None:
        follows &= tf.cast(key_mask, tf.bool)
    if query_mask is not None:
        follows &= shift_right(tf.cast(query_mask, tf.bool), 1)
    return follows
