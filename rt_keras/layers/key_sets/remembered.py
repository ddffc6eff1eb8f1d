"""The set of remembered cluster members."""

import dataclasses

import keras
import tensorflow as tf

from rt_keras.keys import AT_LEAST_1, key, one_of
from rt_keras.layers.key_sets.by_ops import ByOps
from rt_keras.layers.key_sets.cluster import Cluster, biased
from rt_keras.layers.key_sets.key_set import in_union
from rt_keras.layers.key_sets.window import Window
from rt_keras.ops.blocks import shift_right, size
from rt_keras.ops.routing_memory import EVICTIONS, empty_memory, memory_chunk, memory_step


@keras.saving.register_keras_serializable(package="rt_keras")
@dataclasses.dataclass(frozen=True, repr=False)
class Remembered(ByOps):
    """The members in the memory of a query's cluster that have the highest logits.

    The set requires a `Cluster` with `routed_key` "previous_query", whose routing it shares. It
    leaves out the last `window_size` members, which the `Cluster` contains. See
    `rt_keras.ops.routing_memory.memory_chunk` for the equation. Its fields are arguments of
    `rt_keras.layers.RoutingMemoryHeads`.

    Args:
        memory_length: int, number of members in the memory of a cluster.
        memory_keys: int, maximum number of these members that a query attends to. Defaults to 32.
        eviction: string, policy for a full memory: "oldest", "random", "least_attended" or
            "merged"; see the op. Defaults to "oldest".
        memory_block_size: int or None, number of positions between updates of the memory. None for
            the `block_size` of the `Window`. Defaults to None.
        cluster: the `Cluster` that shares its routing; set by the union.

    Raises:
        ValueError: if a value is out of range, or values are incompatible.

    Source: ours; see the op.

    >>> from rt_keras.layers import Heads
    >>> sets = [Window(4), Cluster(2, window_size=4), Remembered(8, memory_keys=2)]
    >>> x = keras.random.normal([1, 2, 20, 8])
    >>> Heads(2, sets)(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 20, 8])
    """

    name = "memory"
    chunk_op, step_op = map(staticmethod, (memory_chunk, memory_step))
    needs_causal_mask = True
    reads_chunks = True
    takes_global_tokens = False

    memory_length: int = key(dataclasses.MISSING, "members in a cluster's memory", AT_LEAST_1)
    memory_keys: int = key(32, "remembered members that a query attends to", AT_LEAST_1)
    eviction: str = key("oldest", "policy for a full memory", one_of(*EVICTIONS))
    memory_block_size: int | None = key(
        None, "positions between updates of the memory, null for block_size", AT_LEAST_1
    )
    # The set that shares its routing.
    cluster: Cluster | None = in_union()

    def beside(self, others):
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
        return dataclasses.replace(self, memory_block_size=block_size, cluster=cluster)

    def attend(self, heads, chunk, joins):
        *found, _ = self._from_start(heads, chunk)
        return biased(found, heads.routed_bias)

    def prefill_state(self, heads, chunk, max_length):
        return self._from_start(heads, chunk)[-1]

    def _from_start(self, heads, chunk):
        """Computes the positions of a sequence from the first one, with an empty memory."""
        routed = self.cluster.routed_query(heads, chunk.query, chunk.query_mask)
        memory = empty_memory(
            routed,
            chunk.value,
            self.cluster.num_clusters,
            memory_length=self.memory_length,
            block_size=self.memory_block_size,
            eviction=self.eviction,
        )
        return memory_chunk(
            routed,
            shift_right(routed, 2),
            chunk.value,
            memory,
            0,
            are_keys=_are_keys(size(routed, 2), chunk.query_mask, chunk.mask_of_keys),
            count=chunk.count,
            dropout=chunk.dropout,
            seed=chunk.seed,
            **self._remembering(heads),
        )

    def _read_by(self, op, heads, chunk, states, joins, options):
        of_cluster = states[self.cluster.name]
        asked = self.cluster.routed_query(heads, chunk.query, state=of_cluster)
        before = tf.cast(of_cluster["query"], asked.dtype)
        positions = tf.reshape(chunk.position, [-1, 1]) + tf.range(size(asked, 2))
        *found, memory = op(
            asked,
            tf.concat([before, asked[:, :, :-1]], axis=2),
            chunk.value,
            states[self.name],
            chunk.position,
            are_keys=positions > 0,
            count=chunk.count,
            **options,
            **self._remembering(heads),
        )
        return biased(found, heads.routed_bias), memory

    def _remembering(self, heads):
        """Returns the arguments of the memory ops."""
        return {
            **self.cluster.routing(heads),
            "window_size": self.cluster.window_size,
            "memory_keys": self.memory_keys,
            "eviction": self.eviction,
        }


def _are_keys(length, query_mask, key_mask):
    """Returns which positions have a key: real positions that follow a real query."""
    found = (tf.range(length) > 0)[None]
    if key_mask is not None:
        found &= tf.cast(key_mask, tf.bool)
    if query_mask is not None:
        found &= shift_right(tf.cast(query_mask, tf.bool), 1)
    return found
