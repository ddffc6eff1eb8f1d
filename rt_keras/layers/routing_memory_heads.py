"""Heads that see a window, the last keys of their cluster, and the best that it remembers."""

import keras
import tensorflow as tf

from rt_keras.layers.head_group import positive_int
from rt_keras.layers.local_routing_heads import LocalRoutingHeads
from rt_keras.ops.attend import merge_pair
from rt_keras.ops.blocks import shift_right, size
from rt_keras.ops.local_routing import local_routing_attention
from rt_keras.ops.routing_memory import EVICTIONS, empty_memory, memory_piece, memory_step


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingMemoryHeads(LocalRoutingHeads):
    """`LocalRoutingHeads` whose clusters remember further back than a query sees.

    Under the same softmax a query also sees, of the `memory_length` members that its cluster
    remembers besides the last `window_size`, the `memory_keys` that fit it best. The clusters are
    the index of that memory: no query is compared with more than one cluster's. A model can carry
    it on from piece to piece of a text, and so find what it read a million tokens ago. For the
    equation see `rt_keras.ops.routing_memory.memory_piece`.

    The memory changes when a block of `memory_block_size` positions ends, and no gradient passes
    through it. Each time costs a copy of the memory, so these blocks may well be longer than those
    of the window; what came since is in reach as one of the last `window_size` of a cluster.

    Args:
        num_heads: int, heads in the group.
        block_size: int, positions in a block of the window.
        num_clusters: int, centroids of each head.
        window_size: int, the most keys that a query sees among the last of a cluster.
        memory_length: int, members that a cluster remembers.
        memory_keys: int, the most of them that a query sees. Defaults to 32.
        eviction: string, what goes where there is no room: "oldest", the default, "random",
            "least_attended" or "merged"; see the op.
        memory_block_size: int, after how many positions members join the memory, at most
            `memory_length`. Defaults to None, for `block_size`.
        **kwargs: further keyword arguments of `LocalRoutingHeads`; `routed_key` must be
            "previous_query".

    Raises:
        ValueError: if a number is out of range, `memory_length` is below `memory_block_size`,
            `eviction` is unknown, an argument is given that these heads do not take, or heads are
            called without `use_causal_mask`.

    Source: ours; see the op.

    >>> heads = RoutingMemoryHeads(
    ...     2, block_size=8, num_clusters=4, window_size=4, memory_length=16, memory_keys=4
    ... )
    >>> x = keras.random.normal([1, 2, 40, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 40, 8])
    """

    needs_causal_mask = True
    takes_global_tokens = False

    def __init__(
        self,
        num_heads,
        block_size,
        num_clusters,
        window_size,
        memory_length,
        memory_keys=32,
        eviction="oldest",
        memory_block_size=None,
        **kwargs,
    ):
        super().__init__(num_heads, block_size, num_clusters, window_size, **kwargs)
        self.memory_length = positive_int("memory_length", memory_length)
        self.memory_keys = positive_int("memory_keys", memory_keys)
        if memory_block_size is None:
            memory_block_size = block_size
        self.memory_block_size = positive_int("memory_block_size", memory_block_size)
        if memory_length < memory_block_size:
            raise ValueError(
                "memory_length must be at least memory_block_size. Received: "
                f"memory_length={memory_length}, memory_block_size={memory_block_size}"
            )
        if eviction not in EVICTIONS:
            raise ValueError(
                f"eviction must be one of {EVICTIONS}. Received: eviction={eviction!r}"
            )
        self.eviction = eviction
        if not self.shift_keys:
            raise ValueError(
                "RoutingMemoryHeads need routed_key='previous_query'. "
                f"Received: routed_key={self.routed_key!r}"
            )

    def attend(self, *, query, key, value, query_mask, key_mask, seed=None, **options):
        if self.share_qk:
            key, key_mask = query, query_mask
        seeds = [None, None] if seed is None else tf.unstack(tf.random.split(seed, 2))
        near = local_routing_attention(
            query,
            key,
            value,
            query_mask=query_mask,
            key_mask=key_mask,
            num_probes=self.num_probes,
            shift_keys=True,
            seed=seeds[0],
            return_logsumexp=True,
            **self._learnt(),
            **self._routing(),
            **options,
        )
        routed = self.routed_query(query, query_mask)
        asked = {"are_keys": _are_keys(size(query, 2), query_mask, key_mask), "seed": seeds[1]}
        memory = self._empty_memory(query, value)
        *far, _ = memory_piece(
            routed,
            shift_right(routed, 2),
            value,
            memory,
            0,
            dropout=options["dropout"],
            **asked,
            **self._remembering(),
        )
        output = self._merged(near, far)
        if query_mask is None:
            return output
        real = tf.cast(query_mask, tf.bool)[:, None, :, None]
        return tf.where(real, output, tf.zeros_like(output))

    def fill_cache(self, *, query, value, count, **arguments):
        cache = super().fill_cache(query=query, value=value, count=count, **arguments)
        routed = self.routed_query(query)
        *_, memory = memory_piece(
            routed,
            shift_right(routed, 2),
            value,
            self._empty_memory(query, value),
            0,
            count=count,
            are_keys=_are_keys(size(query, 2), None, None),
            **self._remembering(),
        )
        return {**cache, "memory": memory}

    def step(self, *, query, value, cache, position, **arguments):
        return self._read(super().step, memory_step, query, value, cache, position, {}, **arguments)

    def piece(self, *, query, value, cache, position, dropout=0.0, seed=None, **arguments):
        seeds = [None, None] if seed is None else tf.unstack(tf.random.split(seed, 2))
        arguments |= {"dropout": dropout, "seed": seeds[0]}
        options = {"dropout": dropout, "seed": seeds[1], "count": arguments.get("count")}
        return self._read(
            super().piece, memory_piece, query, value, cache, position, options, **arguments
        )

    def _read(self, read, remember, query, value, cache, position, options, **arguments):
        """The outputs of the next positions, and the cache.

        Args:
            read: the step or the piece of `LocalRoutingHeads`.
            remember: that of the memory.
            options: arguments of the latter.
            **arguments: further arguments of the former.
        """
        near, kept = read(
            query=query,
            value=value,
            cache=cache,
            position=position,
            return_logsumexp=True,
            **arguments,
        )
        asked = self.routed_query(query, before=cache.get("queries"))
        asked_before = tf.cast(cache["routed"]["query"], asked.dtype)
        positions = tf.reshape(position, [-1, 1]) + tf.range(size(query, 2))
        *far, memory = remember(
            asked,
            tf.concat([asked_before, asked[:, :, :-1]], axis=2),
            value,
            cache["memory"],
            position,
            are_keys=positions > 0,
            **options,
            **self._remembering(),
        )
        return self._merged(near, far), {**kept, "memory": memory}

    def _merged(self, near, far):
        """One softmax over what is near and the memory, from pairs of output and logsumexp."""
        return merge_pair(near, far, bias=tf.convert_to_tensor(self.routed_bias))

    def _empty_memory(self, query, value):
        return empty_memory(
            size(query, 0),
            self.num_heads,
            self.num_clusters,
            query.shape[3],
            value.shape[3],
            value.dtype,
            memory_length=self.memory_length,
            block_size=self.memory_block_size,
            eviction=self.eviction,
        )

    def _remembering(self):
        """The arguments by which the ops remember."""
        return {
            "centroids": tf.convert_to_tensor(self.centroids),
            "load_bias": tf.convert_to_tensor(self.load_bias),
            "scale": tf.convert_to_tensor(self.routed_scale),
            "window_size": self.window_size,
            "memory_keys": self.memory_keys,
            "eviction": self.eviction,
            "num_probes": self.num_probes,
            "normalize": self.normalize,
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
    """Which positions have a key: those after a real query that are real themselves."""
    found = (tf.range(length) > 0)[None]
    if key_mask is not None:
        found &= tf.cast(key_mask, tf.bool)
    if query_mask is not None:
        found &= shift_right(tf.cast(query_mask, tf.bool), 1)
    return found
