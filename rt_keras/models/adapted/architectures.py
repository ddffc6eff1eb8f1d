"""KerasHub's backbones whose attention can be replaced, and where each has it."""

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
    """Positions that there are; those of padding and of rows that have ended may not be."""
    return keras.ops.clip(positions, 0, backbone.max_sequence_length - 1)


class Architecture(NamedTuple):
    """Where a backbone has its attention.

    Args:
        stacks: dictionary from the attributes with lists of blocks to bools, whether those are
            causal.
        embed: function from a backbone, token ids `[batch, length]` and their positions
            `[batch or 1, length]` to what the first block gets; None for backbones that do not
            decode alone.
        attention: string, the attribute of a block with its self-attention.
        mask: string, the method of a block that makes the mask of all pairs.
        cache, padding: strings, the arguments of a block for its cache and for the mask of padding.
    """

    stacks: dict
    embed: Callable | None = None
    attention: str = SELF_ATTENTION
    mask: str = PAIR_MASK
    cache: str = "self_attention_cache"
    padding: str = "decoder_padding_mask"


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
    keras_hub.models.Gemma3Backbone: _DECODER._replace(
        embed=_scaled_tokens,
        attention="attention",
        mask=PAIR_MASK_OF_GEMMA,
        cache="cache",
        padding="padding_mask",
    ),
}
# What others have that attention here has not.
MISSING = {
    "GemmaBackbone": "soft caps on attention logits",
    "PhiMoEBackbone": "mixtures of experts",
    "MixtralBackbone": "mixtures of experts",
    "QwenBackbone": "biases on queries, keys and values alone",
    "Qwen3Backbone": "its norms of queries and keys",
    "QwenMoeBackbone": "mixtures of experts",
    "Qwen3MoeBackbone": "mixtures of experts",
    "SmolLM3Backbone": "layers without rotary positions",
}


def architecture(backbone):
    """The entry of `ARCHITECTURES` of a backbone, or of the one that it adapts."""
    return next(ARCHITECTURES[base] for base in type(backbone).__mro__ if base in ARCHITECTURES)


def check_class_known(cls):
    """Raises a ValueError if the attention of a class of backbones cannot be replaced."""
    name = cls.__name__
    if cls not in ARCHITECTURES:
        known = ", ".join(cls.__name__ for cls in ARCHITECTURES)
        missing = f": {MISSING[name]} are not supported" if name in MISSING else ""
        raise ValueError(
            f"The attention of {name} is not known{missing}. Known: {known}, and tasks on them"
        )


def check_known(backbone):
    """Raises a ValueError if the attention of a backbone cannot be replaced, saying why."""
    check_class_known(type(backbone))
    name = type(backbone).__name__
    unsupported = {
        "vision_encoder": "a vision encoder, whose tokens see one another in both directions",
        "is_embedding_model": "the pooling of EmbeddingGemma",
        "use_bidirectional_attention": "windows in both directions, as in EmbeddingGemma",
        "attention_logit_soft_cap": "a soft cap on attention logits",
    }
    for argument, meaning in unsupported.items():
        if getattr(backbone, argument, None):
            raise ValueError(f"{name} with {argument} is not supported: {meaning}")


def left_out(backbone, config):
    """What a backbone's constructor takes and its own `get_config` leaves out, with the values.

    KerasHub 0.32 leaves `tie_word_embeddings` out of the configurations of Llama.
    """
    return {
        name: getattr(backbone, name)
        for name in constructor_arguments(type(backbone))
        if name not in config and hasattr(backbone, name)
    }


def constructor_arguments(cls):
    """The names of what the constructor of a backbone takes, its own and those of its bases."""
    found = []
    for base in cls.__mro__[: cls.__mro__.index(keras_hub.models.Backbone)]:
        if "__init__" in vars(base):
            parameters = inspect.signature(base.__init__).parameters.values()
            found += [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    return [name for name in found if name != "self"]
