"""A laboratory: heads whose pattern is a mask of all pairs, for patterns that have no op.

Time and memory are O(n²), so a pattern can be tried at small n in minutes, before it gets an op
that is fast; that op is then held against the mask.
"""

import keras
import tensorflow as tf

from rt_keras.layers import LocalRoutingHeads
from rt_keras.ops.attend import MASKED, drop
from rt_keras.ops.blocks import pad_axis
from rt_keras.ops.relative import window_bias
from rt_keras.ops.routing import nearest_centroid, normalize

SELECTIONS = ("nearest", "best", "random", "all")


@keras.saving.register_keras_serializable(package="rt_keras")
class DenseHeads(LocalRoutingHeads):
    """`LocalRoutingHeads` by a mask, whose routed keys may be selected in other ways.

    Args:
        *args: those of `LocalRoutingHeads`.
        selection: string, which routed keys a query sees: "nearest", the last `window_size` of its
            nearest cluster, as in `LocalRoutingHeads`; "best", the `window_size` with the highest
            logits: what routing tries to find; "random", `window_size` drawn once, by `seed`; or
            "all".
        **kwargs: keyword arguments of `LocalRoutingHeads`; `num_probes` must be 1.

    Raises:
        ValueError: if `selection` is unknown or `num_probes` above 1.

    >>> heads = DenseHeads(2, block_size=4, num_clusters=4, window_size=4, selection="best")
    >>> x = keras.random.normal([1, 2, 20, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 20, 8])
    """

    cached_decoding = False

    def __init__(self, *args, selection="nearest", **kwargs):
        super().__init__(*args, **kwargs)
        if selection not in SELECTIONS:
            raise ValueError(
                f"selection must be one of {SELECTIONS}. Received: selection={selection!r}"
            )
        if self.num_probes > 1:
            raise ValueError(f"num_probes must be 1. Received: num_probes={self.num_probes}")
        self.selection = selection

    def attend(
        self,
        *,
        query,
        key,
        value,
        causal,
        query_mask,
        key_mask,
        dropout,
        seed,
        token_bias=None,
        relative_embeddings=None,
    ):
        if not causal:
            raise ValueError("DenseHeads need use_causal_mask=True.")
        length, scale = query.shape[2], query.shape[3] ** -0.5
        positions = tf.range(length)
        start = (positions // self.block_size - self.look_back) * self.block_size
        before = positions <= positions[:, None]
        outside = positions < start[:, None]
        real = True if key_mask is None else tf.cast(key_mask, tf.bool)[:, None, None]
        local = tf.matmul(query * scale, key, transpose_b=True)
        if relative_embeddings is not None:
            in_one_block = query[:, :, None] * scale
            local += window_bias(in_one_block, relative_embeddings, length, 0)[:, :, 0]

        routed_query = normalize(query)
        routed_key, candidates = normalize(key), outside & real
        if self.shift_keys:
            routed_key, candidates = _previous(routed_query, 2), before & (positions > 0)
            if query_mask is not None:
                candidates &= _previous(tf.cast(query_mask, tf.bool), 1)[:, None, None]
        routed = self._routed_logits(routed_query * scale, routed_key)
        chosen = self._selected(routed_query, routed_key, routed, candidates)

        # Each key twice: as one of the window, and as one of the cluster.
        logits = tf.concat([local, routed], axis=-1)
        if token_bias is not None:
            logits += tf.tile(token_bias, [1, 2])[:, None, None]
        allowed = tf.concat(
            [tf.broadcast_to(before & ~outside & real, tf.shape(local)), chosen & real], axis=-1
        )
        if query_mask is not None:
            allowed &= tf.cast(query_mask, tf.bool)[:, None, :, None]
        weights = tf.nn.softmax(tf.where(allowed, logits, MASKED))
        weights = drop(tf.where(allowed, weights, 0.0), dropout, seed)
        return tf.matmul(weights, tf.concat([value, value], axis=2))

    def _routed_logits(self, query, key):
        scale, bias = (x[:, None, None] for x in self._learnt().values())
        return scale * tf.matmul(query, key, transpose_b=True) + bias

    def _selected(self, query, key, logits, candidates):
        """Which of the candidates a query sees, bool `[batch, heads, n, n]`."""
        candidates = tf.broadcast_to(candidates, tf.shape(logits))
        if self.selection == "all":
            return candidates
        if self.selection == "nearest":
            centroids = tf.convert_to_tensor(self.centroids)
            of_queries, of_keys = (
                nearest_centroid(x, centroids, self.load_bias) for x in (query, key)
            )
            candidates &= of_queries[..., None] == of_keys[..., None, :]
            order = tf.cast(tf.range(query.shape[2]), tf.float32)
        elif self.selection == "random":
            length = query.shape[2]
            order = keras.random.uniform([1, self.num_heads, length, length], seed=self.seed or 0)
        else:
            order = tf.stop_gradient(logits)
        order = tf.where(candidates, order, MASKED)
        least = tf.math.top_k(order, min(self.window_size, query.shape[2])).values[..., -1:]
        return candidates & (order >= least)

    def get_config(self):
        return {**super().get_config(), "selection": self.selection}


def _previous(x, axis):
    """At each place along an axis what `x` has at the one before; zeros at the first."""
    cut = (slice(None),) * axis
    return pad_axis(x, axis, 1, 0)[(*cut, slice(-1))]
