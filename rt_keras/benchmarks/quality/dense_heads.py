"""A laboratory: heads whose pattern is a mask of all pairs, for patterns that have no op.

Time and memory are O(n²), so a pattern can be tried at small n in minutes, before it gets an op
that is fast; that op is then held against the mask.
"""

import keras
import tensorflow as tf

from rt_keras.layers import LocalRoutingHeads
from rt_keras.ops.attend import MASKED, drop
from rt_keras.ops.relative import window_bias
from rt_keras.ops.routing import nearest_centroid, normalize

SELECTIONS = ("nearest", "best", "random", "all")


@keras.saving.register_keras_serializable(package="rt_keras")
class DenseHeads(LocalRoutingHeads):
    """`LocalRoutingHeads` by a mask, whose keys outside the window may be selected in other ways.

    Args:
        *args: those of `LocalRoutingHeads`.
        selection: string, which keys before its window a query sees: "nearest", the last
            `window_size` of its nearest cluster, as in `LocalRoutingHeads`; "best", the
            `window_size` with the highest logits: what routing tries to find; "random",
            `window_size` drawn once, by `seed`; or "all".
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
        routed_query = normalize(query)
        routed_key = normalize(self._routed_keys(query, key, query_mask))
        positions = tf.range(query.shape[2])
        start = (positions // self.block_size - self.look_back) * self.block_size
        outside = positions < start[:, None]
        near = (positions <= positions[:, None]) & ~outside
        if key_mask is not None:
            real = tf.cast(key_mask, tf.bool)[:, None, None]
            outside, near = outside & real, near & real

        scale = query.shape[3] ** -0.5
        routed = self._routed_logits(routed_query * scale, routed_key)
        local = tf.matmul(query * scale, key, transpose_b=True)
        if relative_embeddings is not None:
            in_one_block = query[:, :, None] * scale
            local += window_bias(in_one_block, relative_embeddings, query.shape[2], 0)[:, :, 0]
        logits = tf.where(near, local, routed)
        if token_bias is not None:
            logits += token_bias[:, None, None]
        allowed = near | self._selected(routed_query, routed_key, routed, outside)
        if query_mask is not None:
            allowed &= tf.cast(query_mask, tf.bool)[:, None, :, None]
        weights = tf.nn.softmax(tf.where(allowed, logits, MASKED))
        weights = drop(tf.where(allowed, weights, 0.0), dropout, seed)
        return tf.matmul(weights, value)

    def _routed_logits(self, query, key):
        scale, bias = (x[:, None, None] for x in self._learnt().values())
        return scale * tf.matmul(query, key, transpose_b=True) + bias

    def _selected(self, query, key, logits, outside):
        """Which of the keys outside the window a query sees, bool `[batch, heads, n, n]`."""
        if self.selection == "all":
            return outside
        if self.selection == "nearest":
            centroids = tf.convert_to_tensor(self.centroids)
            of_queries, of_keys = (
                nearest_centroid(x, centroids, self.load_bias) for x in (query, key)
            )
            outside &= of_queries[..., None] == of_keys[..., None, :]
            order = tf.cast(tf.range(query.shape[2]), tf.float32)
        elif self.selection == "random":
            length = query.shape[2]
            order = keras.random.uniform([1, self.num_heads, length, length], seed=self.seed or 0)
        else:
            order = tf.stop_gradient(logits)
        order = tf.where(outside, order, MASKED)
        least = tf.math.top_k(order, min(self.window_size, query.shape[2])).values[..., -1:]
        return outside & (order >= least)

    def get_config(self):
        return {**super().get_config(), "selection": self.selection}
