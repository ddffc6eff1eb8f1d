"""The attention inside KerasHub's blocks: where it is, and how it is replaced."""

import keras

from rt_keras.layers import MultiHeadAttention
from rt_keras.models.adapted.attention import AdaptedAttention

NAME = "_self_attention_layer"
DENSE = ("query_dense", "key_dense", "value_dense", "output_dense")


def new_attention(old, head_groups, causal, num_global_tokens, rotary_scale):
    """Attention of the sizes of a block's own, with other heads.

    Args:
        old: the attention layer of a KerasHub block.
        head_groups: list of `HeadGroup`, as many heads as `old` has.
        causal: bool, whether attention is causal.
        num_global_tokens: int, or None for none.
        rotary_scale: float, by which rotary positions are divided.

    Returns:
        An `AdaptedAttention`, built, with weights of its own.
    """
    num_heads, depth = old._query_dense.partial_output_shape[-2:]
    num_key_value_heads, value_dim = old._value_dense.partial_output_shape[-2:]
    features = old._output_dense.partial_output_shape[-1]
    grouped = {}
    if num_key_value_heads != num_heads:
        grouped["num_key_value_heads"] = num_key_value_heads
    if hasattr(old, "rotary_embedding_layer"):
        grouped["rotary_embedding"] = old.rotary_embedding_layer
    new = AdaptedAttention(
        head_groups,
        causal=causal,
        key_dim=depth,
        value_dim=value_dim,
        num_global_tokens=num_global_tokens,
        rotary_scale=rotary_scale,
        dropout=_of(old, "dropout"),
        use_bias=old._query_dense.bias_axes is not None,
        kernel_initializer=_of(old, "kernel_initializer"),
        name=old.name,
        dtype=old.dtype_policy,
        **grouped,
    )
    # Under the path of the old one, by which KerasHub finds dtypes and layouts of weights.
    with keras.name_scope(old.path.rpartition("/")[0]):
        new.build((None, None, features), (None, None, features))
    return new


def _of(attention, name):
    """An argument that some attention layers keep in public and some in private."""
    return getattr(attention, name if hasattr(attention, name) else f"_{name}")


def copy_kernels(source, target):
    """Copies the dense layers of one attention to another: ours, or Keras's and KerasHub's.

    Kernels are `[features, heads * depth]` in ours and `[features, heads, depth]` in theirs. Where
    queries are their own keys, there are no kernels of keys; what had none gets those of queries.

    Raises:
        ValueError: if the source is quantized.
    """
    for name in DENSE:
        of_source, of_target = _dense(source, name), _dense(target, name)
        if of_target is None:
            continue
        if of_source is None:
            of_source = _dense(source, "query_dense")
        if of_source.quantization_mode is not None:
            raise ValueError(
                f"{source.path} is quantized. Adapt or restore a model first, then quantize it"
            )
        for weight in ("kernel", "bias"):
            value = getattr(of_source, weight)
            if value is not None:
                variable = getattr(of_target, weight)
                variable.assign(keras.ops.reshape(value, variable.shape))


def _dense(attention, name):
    return getattr(attention, name if isinstance(attention, MultiHeadAttention) else f"_{name}")


def replace_attention(block, new):
    """Puts attention into a KerasHub block, in the place of its own."""
    # The block is built, and so locked against further layers; this one takes another's place.
    block._tracker.replace_tracked_value("layers", getattr(block, NAME), new)
    setattr(block, NAME, new)
    if new.causal:
        block._compute_self_attention_mask = _padding_alone


def _padding_alone(
    decoder_sequence, decoder_padding_mask=None, decoder_attention_mask=None, **others
):
    """In the place of a decoder's mask of all pairs, which attention here does not need.

    Returns:
        `[batch, 1, keys]`, or None if there is no padding.
    """
    if decoder_attention_mask is not None or not others.get("use_causal_mask", True):
        raise ValueError(
            "An adapted decoder is causal and takes no decoder_attention_mask; give "
            "decoder_padding_mask"
        )
    mask = decoder_padding_mask
    if mask is None:
        mask = getattr(decoder_sequence, "_keras_mask", None)
    return None if mask is None else keras.ops.expand_dims(mask, 1)
