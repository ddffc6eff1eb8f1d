"""Attention of this package that replaces a model's own and has the same weights."""

import contextlib
import contextvars
import math

import keras
import tensorflow as tf

from rt_keras.layers import MultiHeadAttention
from rt_keras.models.documents import SEGMENT_IDS
from rt_keras.models.kept_arguments import KeptArguments
from rt_keras.ops.blocks import places_of_rows, size

# Of the calls of one thread, because KerasHub's blocks pass nothing on to their attention: while a
# model decodes, the function from the layer and its inputs to the output; and while it reads a
# chunk, the result of `rotation_at` for its positions.
ATTEND = contextvars.ContextVar("attend", default=None)
ROTATION = contextvars.ContextVar("rotation", default=None)


@contextlib.contextmanager
def decoding(attend, rotation=None):
    """Makes attention decode in the calls inside this context.

    Args:
        attend: function from the layer and its inputs to the output.
        rotation: result of `rotation_at`. Defaults to None, to compute it in each call.
    """
    tokens = ATTEND.set(attend), ROTATION.set(rotation)
    try:
        yield
    finally:
        ATTEND.reset(tokens[0])
        ROTATION.reset(tokens[1])


@keras.saving.register_keras_serializable(package="rt_keras")
class AdaptedAttention(KeptArguments, MultiHeadAttention):
    """Self-attention that a KerasHub block calls like its own attention.

    Args:
        head_groups: list of `HeadGroup`.
        causal: bool, whether attention is causal. Defaults to False.
        rotary_scale: float, divisor of the positions of rotary embeddings. Defaults to 1.
            KerasHub's layer for Llama takes such a factor but ignores it.
        **kwargs: keyword arguments of `rt_keras.layers.MultiHeadAttention`.

    Call arguments:
        query: `[batch, length, features]`.
        value, key: ignored, because this is self-attention.
        attention_mask: bool or int `[batch, 1, length]`, 0 for padding; or None.
        cache: any value while a model decodes, returned unchanged because `decode` keeps the cache;
            otherwise None.
        cache_update_index, cache_update_mask: ignored.
        hidden_states, self_attention_cache: aliases of `query` and `cache`.
        self_attention_cache_update_index: ignored.
        value_mask: bool `[batch, length]`, Keras's mask of `value`; only encoders heed it.
        training: bool, whether to apply dropout and collect statistics.

    Returns:
        `[batch, length, features]`; with a cache, a tuple of this and the given cache.
    """

    def __init__(self, head_groups, causal=False, rotary_scale=1.0, **kwargs):
        super().__init__(head_groups, **kwargs)
        self.keep_arguments(locals(), leave=["head_groups"])
        # Layers that normalize each head's queries and keys before they are rotated.
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
        self_attention_cache=None,
        self_attention_cache_update_index=None,
        value_mask=None,
    ):
        query = hidden_states if query is None else query
        cache = self_attention_cache if cache is None else cache
        if cache is not None:
            decode = ATTEND.get()
            if decode is None:
                raise ValueError(
                    f"{self.name} takes no self_attention_cache of the original model. Adapted "
                    "language models decode with generate() or call_with_cache()"
                )
            return decode(self, query), cache
        return super().call(
            query,
            query,
            query_mask=self._mask_of_queries(attention_mask),
            value_mask=None if self.causal else value_mask,
            attention_mask=attention_mask,
            return_attention_scores=return_attention_scores,
            global_mask=self._first_tokens(query),
            use_causal_mask=self.causal,
            training=training,
            segment_ids=SEGMENT_IDS.get(),
        )

    def _placed(self, x, start, role):
        norm = self.query_norm if role == "query" else self.key_norm
        return super()._placed(x if norm is None else norm(x), start, role)

    def rotation_at(self, position, length):
        """Returns the rotation of vectors at positions, which all heads and equal layers share.

        A compiled program would otherwise compute the sines again for each head.

        Args:
            position: int scalar or `[batch]`, position of the first vectors.
            length: int, number of positions.

        Returns:
            Tuple of the cosines and the sines of the angles, `[batch or 1, length, 1, depth / 2]`;
            None without rotary embeddings.
        """
        if self.rotary_embedding is None:
            return None
        # Rotation is linear, and turns (1, 0) into (cos, sin).
        ones = tf.ones([1, length, 1, self.key_dim // 2])
        x = tf.concat([ones, tf.zeros_like(ones)], axis=3)
        return tf.split(self._turned(x, places_of_rows(position, tf.range(length))), 2, axis=3)

    def _rotated(self, x, start):
        if self.rotary_embedding is None:
            return x
        rotation = ROTATION.get()
        return super()._rotated(x, start) if rotation is None else _turned_by(x, rotation)

    def rotated_at(self, x, start, position):
        rotation = ROTATION.get()
        if rotation is None:
            return super().rotated_at(x, start, position) / self._gain
        (cos, sin), (new_cos, new_sin) = rotation, self.rotation_at(position, 1)
        new_cos, new_sin = new_cos / self._gain**2, new_sin / self._gain**2
        # The angle is the difference between the new angle and the old one.
        turn = new_cos * cos + new_sin * sin, new_sin * cos - new_cos * sin
        heads_last = tf.transpose(x, [0, 2, 1, 3])
        return tf.transpose(_turned_by(heads_last, turn), [0, 2, 1, 3])

    def _turned(self, x, positions):
        if self.rotary_scale != 1:
            positions = tf.cast(positions, tf.float32) / self.rotary_scale
        return super()._turned(x, positions)

    @property
    def _gain(self):
        """The factor of rotated vectors, other than 1 in YaRN. They must get it only once."""
        is_yarn = getattr(self.rotary_embedding, "rope_type", None) == "yarn"
        return 0.1 * math.log(self.rotary_embedding.scaling_factor) + 1 if is_yarn else 1

    def _first_tokens(self, query):
        """Returns the mask of the global tokens, which are the first ones, or None without any."""
        if self.num_global_tokens is None:
            return None
        is_first = tf.range(size(query, 1)) < self.num_global_tokens
        return tf.broadcast_to(is_first, [size(query, 0), size(query, 1)])

    def _mask_of_queries(self, mask):
        """Returns the padding mask of the queries, which keeps padding out of clusters.

        Heads that take masks of pairs do not need it. Without it, their outputs equal the
        original's at all positions.
        """
        if mask is None or all(group.takes_attention_mask for group in self.head_groups):
            return None
        return tf.cast(mask[:, 0], tf.bool) if mask.shape[1] == 1 else None

    def compute_output_spec(
        self,
        query=None,
        value=None,
        hidden_states=None,
        cache=None,
        self_attention_cache=None,
        **kwargs,
    ):
        query = hidden_states if query is None else query
        cache = self_attention_cache if cache is None else cache
        kwargs = {"return_attention_scores": kwargs.get("return_attention_scores", False)}
        found = super().compute_output_spec(query, query, **kwargs)
        return found if cache is None else (found, cache)


def _turned_by(x, rotation):
    """Rotates vectors `[batch, length, heads, depth]` by angles; see `rotation_at`."""
    cos, sin = rotation
    first, second = tf.split(tf.cast(x, cos.dtype), 2, axis=3)
    turned = tf.concat([first * cos - second * sin, second * cos + first * sin], axis=3)
    return tf.cast(turned, x.dtype)
