"""The attention inside KerasHub's blocks, and that of this package instead."""

import math

import keras
import keras_hub
import tensorflow as tf

from rt_keras.keras_internals import leave_empty, mask_of, part_of, replace_layer
from rt_keras.layers.multi_head_attention import MultiHeadAttention
from rt_keras.models.documents import SEGMENT_IDS
from rt_keras.ops.blocks import size

DENSE = ("query_dense", "key_dense", "value_dense", "output_dense")
# Their names in KerasHub's SmolLM3, whose dense layers join the heads.
DENSE_OF_SMOLLM3 = dict(zip(DENSE, ("q_proj", "k_proj", "v_proj", "o_proj")))


class DecodingStep:
    """Positions that attention reads next, and its cache of the positions before.

    KerasHub's blocks hand what they get as a cache to their attention, and return what that
    returns. Keras would cast the tensors in a dictionary or tuple to the dtype of the block. It
    leaves an object of another class as it is.

    Args:
        cache: cache of the attention; or None for the first positions.
        position: int scalar or `[batch]`, number of positions before.
        count: int `[batch]`, number of positions in each row that are not padding, or None for all;
            without a cache, int scalar, number of positions to put into it.
    """

    def __init__(self, cache, position, count=None):
        self.cache, self.position, self.count = cache, position, count


@keras.saving.register_keras_serializable(package="rt_keras")
class AdaptedAttention(MultiHeadAttention):
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
        cache: `DecodingStep`; or None without a cache.
        cache_update_index, cache_update_mask: ignored.
        hidden_states, self_attention_cache: aliases of `query` and `cache`.
        self_attention_cache_update_index: ignored.
        value_mask: bool `[batch, length]`, Keras's mask of `value`; only encoders heed it.
        training: bool, whether to apply dropout and collect statistics.

    Returns:
        `[batch, length, features]`; with a cache, a tuple of this and the `DecodingStep` with the
        new cache.
    """

    def __init__(self, head_groups, causal=False, rotary_scale=1.0, **kwargs):
        super().__init__(head_groups, **kwargs)
        self.causal, self.rotary_scale = causal, rotary_scale
        # Layers that normalize each head's queries and keys before they are rotated.
        self.query_norm = self.key_norm = None

    def get_config(self):
        options = {"causal": self.causal, "rotary_scale": self.rotary_scale}
        return {**super().get_config(), **options}

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
            return self._next_positions(query, cache)
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

    def _next_positions(self, x, step):
        """Returns the outputs at the positions of a `DecodingStep`, and the one after it."""
        if not isinstance(step, DecodingStep):
            raise ValueError(
                f"{self.name} takes no self_attention_cache of the original model. Adapted "
                "language models decode with generate() or call_with_cache()"
            )
        if step.cache is None:
            output, cache = self.prefill(x, step.count, size(x, 1))
        else:
            output, cache = self.call_with_cache(x, step.cache, step.position, count=step.count)
        return output, DecodingStep(cache, step.position, step.count)

    def _rotated(self, x, start, role):
        norm = self.query_norm if role == "query" else self.key_norm
        return super()._rotated(x if norm is None else norm(x), start, role)

    def _rotate(self, x, positions):
        if self.rotary_scale != 1:
            positions = tf.cast(positions, tf.float32) / self.rotary_scale
        return super()._rotate(x, positions)

    def rotated_at(self, x, start, position):
        # YaRN makes rotated vectors longer. They must become so only once.
        is_yarn = getattr(self.rotary_embedding, "rope_type", None) == "yarn"
        gain = 0.1 * math.log(self.rotary_embedding.scaling_factor) + 1 if is_yarn else 1
        return super().rotated_at(x, start, position) / gain

    def _first_tokens(self, query):
        """Returns the mask of the global tokens, which are the first ones, or None without any."""
        if self.num_global_tokens is None:
            return None
        # [length]
        is_first = tf.range(size(query, 1)) < self.num_global_tokens
        return tf.broadcast_to(is_first, [size(query, 0), size(query, 1)])

    def _mask_of_queries(self, mask):
        """Returns the padding mask of the queries, which keeps padding out of clusters.

        Heads that take masks of pairs do not need it. Without it, their outputs equal the
        original's at all positions.
        """
        if mask is None or all(group.abilities.pair_masks for group in self.head_groups):
            return None
        # [batch, length]
        return tf.cast(mask[:, 0], tf.bool) if mask.shape[1] == 1 else None

    def compute_output_spec(
        self, query=None, value=None, hidden_states=None, return_attention_scores=False, **kwargs
    ):
        query = hidden_states if query is None else query
        return super().compute_output_spec(
            query, query, return_attention_scores=return_attention_scores
        )


def new_attention(
    old, head_groups, causal, num_global_tokens=None, rotary_scale=1.0, rotary_options=None
):
    """Creates attention with the sizes of a block's own attention and with other heads.

    Args:
        old: attention layer of a KerasHub block.
        head_groups: list of `HeadGroup`, with as many heads as `old` has.
        causal: bool, whether attention is causal.
        num_global_tokens: int, number of global tokens. Defaults to None, for none.
        rotary_scale: float, divisor of the positions of rotary embeddings. Defaults to 1.
        rotary_options: dictionary or None, see `AdaptedBackbone`. Defaults to None.

    Returns:
        A built `AdaptedAttention` with new weights.
    """
    heads, depth = _heads_and_depth(old, "query")
    key_heads, value_dim = _heads_and_depth(old, "value")
    features = dense_of(old, "output_dense").partial_output_shape[-1]
    query_dense = dense_of(old, "query_dense")
    new = AdaptedAttention(
        head_groups,
        causal=causal,
        key_dim=depth,
        value_dim=value_dim,
        num_global_tokens=num_global_tokens,
        rotary_scale=rotary_scale,
        rotary_embedding=_rotary_embedding_of(old, rotary_options),
        dropout=part_of(old, "attention_dropout" if _is_smollm3(old) else "dropout"),
        use_bias=query_dense.bias is not None,
        kernel_initializer=query_dense.kernel_initializer,
        name=old.name,
        dtype=old.dtype_policy,
        num_key_value_heads=None if key_heads == heads else key_heads,
    )
    new.query_norm, new.key_norm = (
        getattr(old, f"{role}_norm", getattr(old, f"_{role}_dense_layer_norm", None))
        for role in ("query", "key")
    )
    if _is_smollm3(old) and not old.use_rope:
        # Where nothing is rotated, keys have no distance, so a `rotary_distance` changes nothing.
        for group in head_groups:
            group.rotated_at = lambda x, start, position: x
    # KerasHub finds dtypes and layouts of weights by the path of the old layer.
    outer, _, block = old.path.rpartition("/")[0].rpartition("/")
    with keras.name_scope(block, override_parent=outer):
        new.build((None, None, features), (None, None, features))
    return new


def num_heads(attention):
    """Returns the number of query heads of a KerasHub block's attention."""
    return _heads_and_depth(attention, "query")[0]


def _is_smollm3(attention):
    return hasattr(attention, DENSE_OF_SMOLLM3["query_dense"])


def dense_of(attention, name):
    """Returns a dense layer of attention, by its name in `DENSE`."""
    return part_of(attention, DENSE_OF_SMOLLM3[name] if _is_smollm3(attention) else name)


def _heads_and_depth(attention, role):
    """Returns the number of heads of a KerasHub block's attention, and their depth."""
    if not _is_smollm3(attention):
        return dense_of(attention, f"{role}_dense").partial_output_shape[-2:]
    heads = {"query": attention.num_attention_heads, "value": attention.num_key_value_heads}
    return heads[role], attention.head_dim


def _rotary_embedding_of(attention, options):
    """Returns the layer that rotates queries and keys, or None if they are not rotated."""
    if _is_smollm3(attention):
        # KerasHub's own layer takes no positions.
        options, wavelength = options or {}, attention.rotary_embedding.rope_theta
        if not attention.use_rope:
            return None
    else:
        layer = getattr(attention, "rotary_embedding_layer", getattr(attention, "rope_layer", None))
        if options is None:
            return layer
        wavelength = layer.max_wavelength
    return keras_hub.layers.RotaryEmbedding(wavelength, dtype=attention.dtype_policy, **options)


def window_of(attention):
    """Returns how many keys up to its own a query of a KerasHub block sees, or None for all."""
    if not getattr(attention, "use_sliding_window_attention", True):
        return None
    window = getattr(attention, "sliding_window_size", None)
    return part_of(attention, "sliding_window", window)


def replace_attention(block, architecture, new):
    """Replaces the attention of a KerasHub block.

    Args:
        block: the block.
        architecture: `Architecture` of its backbone.
        new: `AdaptedAttention`.
    """
    old = getattr(block, architecture.attention)
    replace_layer(block, architecture.attention, new)
    if not old.trainable:
        new.trainable = False
    used = {id(weight) for weight in new.weights}
    leave_empty(weight for weight in old.weights if id(weight) not in used)
    if new.causal:
        setattr(block, architecture.mask, _padding_alone)


def _padding_alone(
    decoder_sequence, decoder_padding_mask=None, decoder_attention_mask=None, *others, **options
):
    """Replaces a decoder's mask of all pairs, which the attention of this package does not need.

    Returns:
        `[batch, 1, keys]`, or None if there is no padding.
    """
    if decoder_attention_mask is not None or not options.get("use_causal_mask", True):
        raise ValueError(
            "An adapted decoder is always causal and takes no decoder_attention_mask. Pass "
            "decoder_padding_mask instead"
        )
    mask = decoder_padding_mask
    if mask is None:
        mask = mask_of(decoder_sequence)
    return None if mask is None else keras.ops.expand_dims(mask, 1)
