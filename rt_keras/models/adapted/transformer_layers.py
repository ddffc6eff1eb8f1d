"""KerasHub's `TransformerEncoder` and `TransformerDecoder` with the attention of this package."""

import inspect

import keras
import keras_hub

from rt_keras.keras_internals import SELF_ATTENTION
from rt_keras.models.adapted.architectures import Architecture
from rt_keras.models.adapted.attention_layers import new_attention, replace_attention
from rt_keras.models.adapted.backbones import head_group_config, new_head_groups


class OtherHeads:
    """Mixin of KerasHub's layers: replaces the heads of their self-attention.

    Args:
        head_groups: list of `HeadGroup` or of their configurations. The layer gets its own copy.
        **kwargs: arguments of KerasHub's layer.
    """

    def __init__(self, *, head_groups, **kwargs):
        # A loaded decoder is built by KerasHub's constructor.
        self.head_group_configs = [head_group_config(group) for group in head_groups]
        super().__init__(**kwargs)

    def _replace_heads(self, causal):
        old = getattr(self, SELF_ATTENTION)
        groups = new_head_groups(self.head_group_configs, self.num_heads, self.dtype_policy)
        replace_attention(self, Architecture({}), new_attention(old, groups, causal))

    def get_config(self):
        return {**super().get_config(), "head_groups": list(self.head_group_configs)}


@keras.saving.register_keras_serializable(package="rt_keras")
class AdaptedTransformerEncoder(OtherHeads, keras_hub.layers.TransformerEncoder):
    """`keras_hub.layers.TransformerEncoder` with heads of this package; see `OtherHeads`."""

    def build(self, inputs_shape):
        super().build(inputs_shape)
        self._replace_heads(causal=False)


@keras.saving.register_keras_serializable(package="rt_keras")
class AdaptedTransformerDecoder(OtherHeads, keras_hub.layers.TransformerDecoder):
    """`keras_hub.layers.TransformerDecoder` with heads of this package; see `OtherHeads`.

    Its self-attention is always causal. Its cross-attention stays.
    """

    def build(self, decoder_sequence_shape, encoder_sequence_shape=None):
        super().build(decoder_sequence_shape, encoder_sequence_shape)
        self._replace_heads(causal=True)

    def compute_output_spec(self, *args, **kwargs):
        given = inspect.signature(self.call).bind(*args, **kwargs).arguments
        only = {"decoder_attention_mask": None, "use_causal_mask": True}
        only |= dict.fromkeys(["self_attention_cache", "cross_attention_cache"])
        for name, value in only.items():
            if given.get(name, value) is not value:
                raise ValueError(f"{self.name} with other heads takes {name}={value} only")
        return super().compute_output_spec(*args, **kwargs)


# Adapted classes by the class that they adapt.
TRANSFORMER_LAYERS = {
    cls.__bases__[-1]: cls for cls in (AdaptedTransformerEncoder, AdaptedTransformerDecoder)
}
