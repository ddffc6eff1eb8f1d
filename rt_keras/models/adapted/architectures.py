"""KerasHub backbones whose attention can be replaced, and where it is."""

from collections.abc import Callable
from typing import NamedTuple

import keras
import keras_hub

from rt_keras.keras_internals import PAIR_MASK, PAIR_MASK_OF_GEMMA, SELF_ATTENTION


def _tokens(backbone, token_ids, positions):
    return backbone.token_embedding(token_ids)


def _scaled_tokens(backbone, token_ids, positions):
    tokens = backbone.token_embedding(token_ids)
    return tokens * keras.ops.cast(backbone.hidden_dim**0.5, tokens.dtype)


def _tokens_and_positions(backbone, token_ids, positions):
    tokens = backbone.token_embedding(token_ids)
    places = _learned(backbone, positions)
    return tokens + backbone.position_embedding(tokens, positions=places)


def _joint_tokens_and_positions(backbone, token_ids, positions):
    return backbone.embeddings(token_ids, positions=_learned(backbone, positions))


def _learned(backbone, positions):
    """Clips positions, since those of padding and finished rows may exceed the learned ones."""
    return keras.ops.clip(positions, 0, backbone.max_sequence_length - 1)


class Architecture(NamedTuple):
    """The location of the attention in a backbone.

    Args:
        stacks: dictionary from the names of the attributes with lists of blocks to bools, whether
            these blocks are causal.
        embed: function from a backbone, token ids `[batch, length]` and their positions
            `[batch or 1, length]` to the inputs of the first block; None for encoders and
            encoder-decoders.
        attention: string, attribute of a block that contains its self-attention.
        mask: string, method of a block that computes the mask of all pairs.
        cache, padding: strings, arguments of a block for its cache and for the padding mask.
        layer_norm: string, attribute of the last normalization.
    """

    stacks: dict
    embed: Callable | None = None
    attention: str = SELF_ATTENTION
    mask: str = PAIR_MASK
    cache: str = "self_attention_cache"
    padding: str = "decoder_padding_mask"
    layer_norm: str = "layer_norm"


_ENCODER = Architecture({"transformer_layers": False})
_DECODER = Architecture({"transformer_layers": True}, _tokens)
ARCHITECTURES = {
    keras_hub.models.BertBackbone: _ENCODER,
    keras_hub.models.RobertaBackbone: _ENCODER,
    keras_hub.models.XLMRobertaBackbone: _ENCODER,
    keras_hub.models.DistilBertBackbone: _ENCODER,
    keras_hub.models.GPT2Backbone: _DECODER._replace(embed=_tokens_and_positions),
    keras_hub.models.OPTBackbone: _DECODER._replace(embed=_joint_tokens_and_positions),
    keras_hub.models.BartBackbone: Architecture(
        {"encoder_transformer_layers": False, "decoder_transformer_layers": True}
    ),
    keras_hub.models.LlamaBackbone: _DECODER,
    keras_hub.models.Llama3Backbone: _DECODER,
    keras_hub.models.MistralBackbone: _DECODER,
    keras_hub.models.Qwen3Backbone: _DECODER,
    keras_hub.models.SmolLM3Backbone: _DECODER._replace(attention="self_attn", layer_norm="norm"),
    keras_hub.models.Gemma3Backbone: _DECODER._replace(
        embed=_scaled_tokens,
        attention="attention",
        mask=PAIR_MASK_OF_GEMMA,
        cache="cache",
        padding="padding_mask",
    ),
}
# Features of other backbones that this package does not support.
MISSING = {
    "GemmaBackbone": "soft caps on attention logits",
    "PhiMoEBackbone": "mixtures of experts",
    "MixtralBackbone": "mixtures of experts",
    "QwenBackbone": "biases on queries, keys and values only",
    "QwenMoeBackbone": "mixtures of experts",
    "Qwen3MoeBackbone": "mixtures of experts",
}
# Options of the supported backbones that this package does not support.
UNSUPPORTED = {
    "vision_encoder": "a vision encoder, whose tokens attend in both directions",
    "is_embedding_model": "the pooling of EmbeddingGemma",
    "use_bidirectional_attention": "windows in both directions, as in EmbeddingGemma",
    "attention_logit_soft_cap": "a soft cap on attention logits",
    "attention_bias": "biases on queries, keys and values only",
}


def architecture(backbone):
    """Returns the entry of a backbone, or of the one that it adapts, in `ARCHITECTURES`."""
    return next(ARCHITECTURES[base] for base in type(backbone).__mro__ if base in ARCHITECTURES)


def attention_blocks(backbone):
    """Yields each block of a backbone with self-attention, and whether it is causal."""
    for name, causal in architecture(backbone).stacks.items():
        for block in getattr(backbone, name):
            yield block, causal


def attention_layers(backbone):
    """Returns a list of the self-attention layers of a backbone's blocks."""
    name = architecture(backbone).attention
    return [getattr(block, name) for block, _ in attention_blocks(backbone)]


def backbone_of(model):
    """Returns the backbone of a task, or the model itself if it is not a task."""
    return model.backbone if isinstance(model, keras_hub.models.Task) else model


def adapted_class(cls, *mixins, **attributes):
    """Creates the class of KerasHub's objects with heads of this package, and registers it.

    Args:
        cls: KerasHub's class.
        *mixins: classes before it among the bases.
        **attributes: other attributes of the class.

    Returns:
        The class, with `cls` as its `original_class`.
    """
    attributes |= {"__module__": __name__, "original_class": cls}
    attributes["__doc__"] = f"`{cls.__name__}` of `keras_hub`, as `rt_keras.adapt` changes it."
    made = type(f"Adapted{cls.__name__}", (*mixins, cls), attributes)
    return keras.saving.register_keras_serializable(package="rt_keras")(made)


def original_class(x):
    """Returns KerasHub's class of an adapted object, or the class of another object."""
    return getattr(type(x), "original_class", type(x))


def check_class_known(cls):
    """Raises a ValueError if the attention of a backbone class cannot be replaced."""
    name = cls.__name__
    if cls not in ARCHITECTURES:
        known = ", ".join(cls.__name__ for cls in ARCHITECTURES)
        missing = f": {MISSING[name]} are not supported" if name in MISSING else ""
        raise ValueError(
            f"The attention of {name} cannot be replaced{missing}. Supported: {known}, and their "
            "tasks"
        )


def check_known(backbone):
    """Raises a ValueError with the reason if the attention of a backbone cannot be replaced."""
    check_class_known(type(backbone))
    name = type(backbone).__name__
    for argument, meaning in UNSUPPORTED.items():
        if getattr(backbone, argument, None):
            raise ValueError(f"{name} with {argument} is not supported: {meaning}")
    normalized = getattr(backbone, "query_head_dim_normalize", True)
    if not normalized and backbone.head_dim != backbone.hidden_dim // backbone.num_query_heads:
        raise ValueError(f"{name} with query_head_dim_normalize=False is not supported")
    share = getattr(backbone, "partial_rotary_factor", 1.0)
    if share != 1:
        raise ValueError(f"{name} with partial_rotary_factor={share} is not supported, only 1")


def config_with_all(backbone, config):
    """Adds to a backbone's configuration what KerasHub 0.32 leaves out of that of Llama."""
    ties = getattr(backbone, "tie_word_embeddings", None)
    return config if ties is None else {"tie_word_embeddings": ties, **config}


def backbone_from_config(cls, config):
    """Creates a backbone from its configuration.

    In KerasHub 0.32, SmolLM3 passes the name and the dtype of a backbone on to its blocks, which do
    not take them. It therefore gets its name afterwards, and its dtype as the global policy.

    Args:
        cls: class of the backbone.
        config: dictionary.

    Returns:
        A backbone.
    """
    if not issubclass(cls, keras_hub.models.SmolLM3Backbone):
        return cls.from_config(config)
    arguments, before = dict(config), keras.config.dtype_policy()
    name, trainable = arguments.pop("name", None), arguments.pop("trainable", True)
    policy = keras.dtype_policies.get(arguments.pop("dtype", before))
    if isinstance(policy, keras.dtype_policies.DTypePolicyMap):
        raise ValueError(f"{cls.__name__} has quantized layers, or layers with their own dtype")
    keras.config.set_dtype_policy(policy)
    try:
        made = cls(**arguments)
    finally:
        keras.config.set_dtype_policy(before)
    made.name, made.trainable = name or made.name, trainable
    return made
