"""Attention of this package in the place of a model's own, with the same weights."""

import keras
import tensorflow as tf

from rt_keras.layers import MultiHeadAttention
from rt_keras.models.kept_arguments import KeptArguments
from rt_keras.ops.blocks import places_of_rows, size


@keras.saving.register_keras_serializable(package="rt_keras")
class AdaptedAttention(KeptArguments, MultiHeadAttention):
    """Self-attention that a KerasHub block calls as it called its own.

    Args:
        head_groups: list of `HeadGroup`.
        causal: bool, whether attention is causal. Defaults to False.
        rotary_scale: float, by which rotary positions are divided. Defaults to 1. KerasHub's layer
            for Llama takes such a factor and leaves it out of account.
        **kwargs: keyword arguments of `rt_keras.layers.MultiHeadAttention`.

    Call arguments:
        query: `[batch, length, features]`.
        value: the same; None, the default, for `query`.
        attention_mask: bool or int `[batch, 1, length]`, 0 for padding; or None.
        cache: None; or anything, while a model decodes: the cache itself is that of `decode`.
        cache_update_index, cache_update_mask: what goes with it.
        hidden_states: another name of `query`.
        training: bool, whether dropout is on and statistics are collected.

    Returns:
        `[batch, length, features]`; with a cache, that and the cache as it was given.
    """

    def __init__(self, head_groups, causal=False, rotary_scale=1.0, **kwargs):
        super().__init__(head_groups, **kwargs)
        self.keep_arguments(locals(), leave=["head_groups"])
        # While a model decodes: a function of the layer and its inputs, which gives the output.
        self.decode = None
        # While a model reads a chunk: what `rotation_at` gives for its positions.
        self.rotation = None
        # Layers that normalise each head's queries and keys before they are rotated.
        self.query_norm = self.key_norm = None

    def call(
        self,
        query=None,
        value=None,
        key=None,
        attention_mask=None,
        cache=None,
        cache_update_index=None,
        cache_update_mask=None,
        return_attention_scores=False,
        hidden_states=None,
        training=None,
    ):
        query = hidden_states if query is None else query
        if cache is not None:
            if self.decode is None:
                raise ValueError(
                    f"{self.name} takes no cache of the original model. Call generate() or "
                    "call_with_cache() of the adapted one."
                )
            return self.decode(self, query), cache
        return super().call(
            query,
            query,
            query_mask=self._mask_of_queries(attention_mask),
            attention_mask=attention_mask,
            return_attention_scores=return_attention_scores,
            global_mask=self._first_tokens(query),
            use_causal_mask=self.causal,
            training=training,
        )

    def _placed(self, x, start, role):
        norm = self.query_norm if role == "query" else self.key_norm
        return super()._placed(x if norm is None else norm(x), start, role)

    def rotation_at(self, position, length):
        """What turns vectors by their positions, for all heads and for all layers alike.

        Inside one compiled program the sines would be computed again for each head.

        Args:
            position: int scalar or `[batch]`, that of the first vectors.
            length: int.

        Returns:
            The cosines and the sines of the angles, `[batch or 1, length, 1, depth / 2]`; None if
            positions are not rotary.
        """
        if self.rotary_embedding is None:
            return None
        # Rotation is linear, and turns (1, 0) into (cos, sin).
        ones = tf.ones([1, length, 1, self.key_dim // 2])
        x = tf.concat([ones, tf.zeros_like(ones)], axis=3)
        return tf.split(self._turned(x, position), 2, axis=3)

    def _rotated(self, x, start):
        if self.rotary_embedding is None:
            return x
        if self.rotation is None:
            return tf.cast(self._turned(x, start), x.dtype)
        cos, sin = self.rotation
        first, second = tf.split(tf.cast(x, cos.dtype), 2, axis=3)
        turned = tf.concat([first * cos - second * sin, second * cos + first * sin], axis=3)
        return tf.cast(turned, x.dtype)

    def _turned(self, x, start):
        """Vectors as KerasHub's layer turns them, at positions from `start` on."""
        positions = places_of_rows(start, tf.range(size(x, 1)))
        if self.rotary_scale != 1:
            positions = tf.cast(positions, tf.float32) / self.rotary_scale
        return self.rotary_embedding(x, positions=positions)

    def _first_tokens(self, query):
        """The mask of the global tokens, which are the first ones; or None if there are none."""
        if self.num_global_tokens is None:
            return None
        is_first = tf.range(size(query, 1)) < self.num_global_tokens
        return tf.broadcast_to(is_first, [size(query, 0), size(query, 1)])

    def _mask_of_queries(self, mask):
        """The padding of the queries, which must not have a part in clusters.

        Heads that see any keys, which take masks of pairs, have no such thing; without the mask
        their output is that of the original everywhere.
        """
        if mask is None or all(group.takes_attention_mask for group in self.head_groups):
            return None
        return tf.cast(mask[:, 0], tf.bool) if mask.shape[1] == 1 else None

    def compute_output_spec(self, query=None, value=None, hidden_states=None, cache=None, **kwargs):
        query = hidden_states if query is None else query
        kwargs = {"return_attention_scores": kwargs.get("return_attention_scores", False)}
        found = super().compute_output_spec(query, query, **kwargs)
        return found if cache is None else (found, cache)
