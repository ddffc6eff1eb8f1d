"""KerasHub backbones whose attention can be replaced, and where it is."""

import inspect
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
# Arguments that every layer has.
LAYER_ARGUMENTS = ("name", "trainable", "dtype")
# Features of other backbones that this package does not support.
MISSING = {
    "GemmaBackbone": "soft caps on attention logits",
    "PhiMoEBackbone": "mixtures of experts",
    "MixtralBackbone": "mixtures of experts",
    "QwenBackbone": "biases on queries, keys and values only",
    "QwenMoeBackbone": "mixtures of experts",
    "Qwen3MoeBackbone": "mixtures of experts",
}


def architecture(backbone):
    """Returns the entry of a backbone, or of the one that it adapts, in `ARCHITECTURES`."""
    return next(ARCHITECTURES[base] for base in type(backbone).__mro__ if base in ARCHITECTURES)


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
    unsupported = {
        "vision_encoder": "a vision encoder, whose tokens attend in both directions",
        "is_embedding_model": "the pooling of EmbeddingGemma",
        "use_bidirectional_attention": "windows in both directions, as in EmbeddingGemma",
        "attention_logit_soft_cap": "a soft cap on attention logits",
        "attention_bias": "biases on queries, keys and values only",
    }
    for argument, meaning in unsupported.items():
        if getattr(backbone, argument, None):
            raise ValueError(f"{name} with {argument} is not supported: {meaning}")
    normalized = getattr(backbone, "query_head_dim_normalize", True)
    if not normalized and backbone.head_dim != backbone.hidden_dim // backbone.num_query_heads:
        raise ValueError(f"{name} with query_head_dim_normalize=False is not supported")
    share = getattr(backbone, "partial_rotary_factor", 1.0)
    if share != 1:
        raise ValueError(f"{name} with partial_rotary_factor={share} is not supported, only 1")


def left_out(backbone, config):
    """Returns the constructor arguments that a backbone's `get_config` omits, with their values.

    KerasHub 0.32 omits `tie_word_embeddings` from the configurations of Llama.
    """
    return {
        name: getattr(backbone, name)
        for name in constructor_arguments(type(backbone))
        if name not in config and hasattr(backbone, name)
    }


def constructor_arguments(cls):
    """Returns the names of a backbone's constructor arguments, including those of its bases."""
    found = []
    for base in cls.__mro__[: cls.__mro__.index(keras_hub.models.Backbone)]:
        if "__init__" in vars(base):
            parameters = inspect.signature(base.__init__).parameters.values()
            found += [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    return [name for name in found if name != "self"]


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
    arguments = {name: x for name, x in config.items() if name not in LAYER_ARGUMENTS}
    before = keras.config.dtype_policy()
    policy = keras.dtype_policies.get(config.get("dtype", before))
    if isinstance(policy, keras.dtype_policies.DTypePolicyMap):
        raise ValueError(f"{cls.__name__} has quantized layers, or layers with their own dtype")
    keras.config.set_dtype_policy(policy)
    try:
        made = cls(**arguments)
    finally:
        keras.config.set_dtype_policy(before)
    made.name = config.get("name", made.name)
    made.trainable = config.get("trainable", True)
    return made
