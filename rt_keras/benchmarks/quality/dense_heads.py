"""Heads whose pattern is a mask of all pairs, for experiments with patterns that have no op.

Time is O(n²), so a pattern can be tried at small n in minutes, before it gets a fast op. The op is
then compared with the mask.
"""

import dataclasses

import keras
import tensorflow as tf

from rt_keras.keys import key, one_of
from rt_keras.layers import LocalRoutingHeads
from rt_keras.layers.key_sets import Cluster, Window
from rt_keras.layers.key_sets.cluster import biased
from rt_keras.ops.attend import accumulation_dtype, attend
from rt_keras.ops.blocks import ceil_div, join_blocks, move_axis, shift_right, size, split_blocks
from rt_keras.ops.chunks import map_chunks
from rt_keras.ops.routing import nearest_centroid, normalize

SELECTIONS = ("nearest", "best", "random", "all")
# Number of queries whose logits are in memory at once.
QUERIES_AT_ONCE = 64
# Number of spans of a sequence. Queries are not compared with the keys of later spans.
SPANS = 4


@keras.saving.register_keras_serializable(package="rt_keras")
@dataclasses.dataclass(frozen=True, repr=False)
class SelectedKeys(Cluster):
    """A `Cluster` computed with a mask, with a choice of key selection; see `DenseHeads`."""

    needs_causal_mask = True
    cached_decoding = False
    takes_global_tokens = False
    selection: str = key("nearest", "selection of routed keys", one_of(*SELECTIONS))

    def check(self):
        super().check()
        if self.num_probes > 1:
            raise ValueError(f"num_probes must be 1. Received: num_probes={self.num_probes}")

    def attend(self, heads, chunk, joins):
        of_queries, of_keys = self._routed(heads, chunk)
        of_keys["value"] = chunk.value
        found = self._attend_selected(of_queries, of_keys, chunk.dropout, chunk.seed)
        return biased(found, heads.routed_bias)

    def _routed(self, heads, chunk):
        """Returns the routed queries and keys, dictionaries of `[batch, heads, length, ...]`.

        Queries are scaled after their clusters are found.
        """
        length, depth = chunk.query.shape[2:]
        query_mask, key_mask = (
            tf.ones([1, length], tf.bool) if mask is None else tf.cast(mask, tf.bool)
            for mask in (chunk.query_mask, chunk.mask_of_keys)
        )
        query = normalize(self.routed_query(heads, chunk.query, query_mask))
        key = normalize(chunk.keys)
        if self.shifts_keys:
            # The first position has no previous query.
            key, key_mask = shift_right(query, 2), key_mask & shift_right(query_mask, 1)
        scale = tf.convert_to_tensor(heads.routed_scale)[:, None, None] * depth**-0.5
        of_queries = {"query": query * scale, "query_mask": query_mask[:, None]}
        of_keys = {"key": key, "key_mask": key_mask[:, None]}
        if self.selection == "nearest":
            centroids = tf.convert_to_tensor(heads.centroids)
            of_queries["query_cluster"] = nearest_centroid(query, centroids, heads.load_bias)
            of_keys["key_cluster"] = nearest_centroid(key, centroids, heads.load_bias)
        return {**of_queries, "position": tf.range(length)[None, None]}, of_keys

    def _attend_selected(self, of_queries, of_keys, dropout, seed):
        """Attends to the selected keys, some queries at a time; returns output and logsumexp."""
        length = of_queries["query"].shape[2]
        span = max(QUERIES_AT_ONCE, ceil_div(length, SPANS))
        ends = [*range(span, length, span), length]
        count = len(ends)
        seeds = [None] * count if seed is None else tf.unstack(tf.random.split(seed, count))
        found = [
            self._attend_span(
                {name: x[:, :, start:end] for name, x in of_queries.items()},
                {name: x[:, :, :end] for name, x in of_keys.items()},
                dropout,
                of_span,
            )
            for start, end, of_span in zip([0, *ends], ends, seeds)
        ]
        return (tf.concat(parts, axis=2) for parts in zip(*found))

    def _attend_span(self, of_queries, of_keys, dropout, seed):
        length = of_queries["query"].shape[2]
        block_size = min(length, QUERIES_AT_ONCE)
        num_blocks = ceil_div(length, block_size)
        blocks = {
            name: move_axis(split_blocks(x, num_blocks, block_size), 2, 0)
            for name, x in of_queries.items()
        }
        if dropout:
            blocks["seed"] = tf.random.split(seed, num_blocks)
        if self.selection != "all":
            # Computed once, without a gradient, rather than each time that a block is computed.
            blocks["least"] = tf.stop_gradient(
                map_chunks(
                    lambda part, whole: self._least(*self._order({**part, **whole})),
                    {name: tf.stop_gradient(x) for name, x in blocks.items()},
                    {name: tf.stop_gradient(x) for name, x in of_keys.items()},
                    blocks["query"].dtype,
                )
            )

        def attend_block(part, whole):
            block = {**part, **whole}
            allowed, order = self._order(block)
            if "least" in block:
                allowed &= order >= block["least"]
            return attend(
                block["query"],
                block["key"],
                block["value"],
                allowed,
                dropout=dropout,
                seed=block.get("seed"),
            )

        dtypes = of_keys["value"].dtype, accumulation_dtype(of_queries["query"].dtype)
        found = map_chunks(attend_block, blocks, of_keys, dtypes)
        return [join_blocks(move_axis(x, 0, 2), length) for x in found]

    def _order(self, block):
        """Returns a mask of candidate keys, `[batch, heads, queries, keys]`, and their scores.

        Queries see the candidates with the highest scores."""
        query, key, positions = block["query"], block["key"], block["position"][..., None]
        others = tf.range(key.shape[2])
        candidates = others <= positions
        if self.window is not None:
            first_block = positions // self.window.block_size - self.window.look_back
            candidates &= others < first_block * self.window.block_size
        candidates &= block["query_mask"][..., None] & block["key_mask"][:, :, None]
        if self.selection == "random":
            seeds = tf.stack([self.seed or 0, positions[0, 0, 0, 0]])
            shape = [1, *query.shape[1:3], key.shape[2]]
            return candidates, tf.random.stateless_uniform(shape, seeds, dtype=query.dtype)
        if self.selection == "nearest":
            candidates &= block["query_cluster"][..., None] == block["key_cluster"][:, :, None]
            return candidates, tf.cast(others, query.dtype)
        return candidates, tf.stop_gradient(tf.matmul(query, key, transpose_b=True))

    def _least(self, candidates, order):
        """Returns the lowest score among the selected candidates."""
        order = tf.where(candidates, order, order.dtype.min)
        count = min(self.window_size, size(order, 3))
        return tf.math.top_k(order, count).values[..., -1:]


@keras.saving.register_keras_serializable(package="rt_keras")
class DenseHeads(LocalRoutingHeads):
    """`LocalRoutingHeads` computed with a mask, with a choice of key selection.

    Args:
        *args: positional arguments of `LocalRoutingHeads`.
        selection: string, the routed keys that a query sees: "nearest", the last `window_size` of
            its nearest cluster, as in `LocalRoutingHeads`; "best", the `window_size` with the
            highest logits, including ties, the ideal that routing approximates; "random",
            `window_size` drawn once with `seed`; or "all".
        **kwargs: keyword arguments of `LocalRoutingHeads`; `num_probes` must be 1.

    Raises:
        ValueError: if `selection` is unknown or `num_probes` is above 1.

    >>> heads = DenseHeads(2, block_size=4, num_clusters=4, window_size=4, selection="best")
    >>> x = keras.random.normal([1, 2, 20, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 20, 8])
    """

    declared = (Window, SelectedKeys)
