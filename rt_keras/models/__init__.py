"""Models on KerasHub's base classes."""

from rt_keras.models.routing_transformer_backbone import RoutingTransformerBackbone
from rt_keras.models.routing_transformer_causal_lm import RoutingTransformerCausalLM
from rt_keras.models.routing_transformer_causal_lm_preprocessor import (
    RoutingTransformerCausalLMPreprocessor,
)

__all__ = [
    "RoutingTransformerBackbone",
    "RoutingTransformerCausalLM",
    "RoutingTransformerCausalLMPreprocessor",
]
