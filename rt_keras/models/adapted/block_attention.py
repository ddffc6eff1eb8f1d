"""The attention inside KerasHub's blocks: its location, and its replacement."""

import keras
import keras_hub

from rt_keras.keras_internals import mask_of, part_of, replace_layer
from rt_keras.models.adapted.attention import AdaptedAttention
from rt_keras.models.adapted.deferred import leave_empty

DENSE = ("query_dense", "key_dense", "value_dense", "output_dense")
# Their names in KerasHub's SmolLM3, whose dense layers join the heads.
DENSE_OF_SMOLLM3 = dict(zip(DENSE, ("q_proj", "k_proj", "v_proj", "o_proj")))


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
            group.rotated_at = _unrotated
    # KerasHub finds dtypes and layouts of weights by the path of the old layer.
    outer, _, block = old.path.rpartition("/")[0].rpartition("/")
    with keras.name_scope(block, override_parent=outer):
        new.build((None, None, features), (None, None, features))
    return new


def _unrotated(x, start, position):
    return x


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
