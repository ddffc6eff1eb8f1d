"""What clusters remember of long ago."""

import dataclasses

import keras
import tensorflow as tf

from rt_keras.keys import AT_LEAST_1, key, one_of
from rt_keras.layers.key_sets.cluster import Cluster, biased
from rt_keras.layers.key_sets.key_set import KeySet, in_union
from rt_keras.layers.key_sets.window import Window
from rt_keras.ops.blocks import shift_right, size
from rt_keras.ops.cluster_memory import empty_memory
from rt_keras.ops.routing_memory import EVICTIONS, memory_chunk, memory_step


@keras.saving.register_keras_serializable(package="rt_keras")
@dataclasses.dataclass(frozen=True, repr=False)
class Remembered(KeySet):
    """The members of a query's cluster that fit it best, of those that it remembers.

    It stands behind a `Cluster` with `routed_key` "previous_query", whose routing it shares, and
    sees none of the last `window_size` members, which that has. See
    `rt_keras.ops.routing_memory.memory_chunk` for the equation. Its fields are arguments of
    `rt_keras.layers.RoutingMemoryHeads`.

    Args:
        memory_length: int, members that a cluster remembers.
        memory_keys: int, the most of them that a query sees. Defaults to 32.
        eviction: str, what goes where there is no room. Defaults to "oldest".
        memory_block_size: int, positions after which members join the memory, None for block_size.
            Defaults to None.
        cluster: the `Cluster` that it stands behind, which a union finds itself.

    Raises:
        ValueError: if a value is out of range, or values do not go together.

    Source: ours; see the op.

    >>> from rt_keras.layers import Heads
    >>> sets = [Window(4), Cluster(2, window_size=4), Remembered(8, memory_keys=2)]
    >>> x = keras.random.normal([1, 2, 20, 8])
    >>> Heads(2, sets)(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 20, 8])
    """

    name = "memory"
    needs_causal_mask = True
    reads_chunks = True
    takes_global_tokens = False

    memory_length: int = key(dataclasses.MISSING, "members that a cluster remembers", AT_LEAST_1)
    memory_keys: int = key(32, "the most of them that a query sees", AT_LEAST_1)
    eviction: str = key("oldest", "what goes where there is no room", one_of(*EVICTIONS))
    memory_block_size: int | None = key(
        None, "positions after which members join the memory, null for block_size", AT_LEAST_1
    )
    # The set that it stands behind.
    cluster: Cluster | None = in_union()

    def beside(self, others):
        cluster = next((other for other in others if isinstance(other, Cluster)), None)
        window = next((other for other in others if isinstance(other, Window)), None)
        if cluster is None or not cluster.shift_keys or not cluster.scaled:
            raise ValueError(
                "A Remembered set needs a Cluster with routed_key='previous_query' and scaled=True "
                f"beside it. Received: {cluster}"
            )
        block_size = self.memory_block_size
        if block_size is None:
            if window is None:
                raise ValueError("memory_block_size must be given where there is no Window")
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

    def fill(self, heads, chunk, max_length):
        return self._from_start(heads, chunk)[-1]

    def _from_start(self, heads, chunk):
        """The positions of a sequence from its first one on, with nothing remembered before it."""
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

    def read(self, heads, chunk, states, joins):
        options = {"dropout": chunk.dropout, "seed": chunk.seed}
        return self._read(memory_chunk, heads, chunk, states, options)

    def step(self, heads, chunk, states, joins):
        return self._read(memory_step, heads, chunk, states, {})

    def _read(self, remember, heads, chunk, states, options):
        """The next positions, by the op for a chunk or that for one position."""
        of_cluster = states[self.cluster.name]
        asked = self.cluster.routed_query(heads, chunk.query, state=of_cluster)
        before = tf.cast(of_cluster["query"], asked.dtype)
        positions = tf.reshape(chunk.position, [-1, 1]) + tf.range(size(asked, 2))
        *found, memory = remember(
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
        """The arguments by which the ops remember."""
        return {
            **self.cluster.routing(heads),
            "window_size": self.cluster.window_size,
            "memory_keys": self.memory_keys,
            "eviction": self.eviction,
        }


def _are_keys(length, query_mask, key_mask):
    """Which positions have a key: those after a real query that are real themselves."""
    found = (tf.range(length) > 0)[None]
    if key_mask is not None:
        found &= tf.cast(key_mask, tf.bool)
    if query_mask is not None:
        found &= shift_right(tf.cast(query_mask, tf.bool), 1)
    return found
