"""KerasHub's backbones with the attention of this package."""

import keras
import keras_hub

from rt_keras.layers import FullHeads, LocalHeads
from rt_keras.models.adapted.attention_layers import NAME, new_attention, replace_attention

# The backbones whose attention can be replaced: the lists of blocks of each, and whether those are
# causal.
STACKS = {
    keras_hub.models.BertBackbone: {"transformer_layers": False},
    keras_hub.models.RobertaBackbone: {"transformer_layers": False},
    keras_hub.models.XLMRobertaBackbone: {"transformer_layers": False},
    keras_hub.models.DistilBertBackbone: {"transformer_layers": False},
    keras_hub.models.GPT2Backbone: {"transformer_layers": True},
    keras_hub.models.OPTBackbone: {"transformer_layers": True},
    keras_hub.models.BartBackbone: {
        "encoder_transformer_layers": False,
        "decoder_transformer_layers": True,
    },
    keras_hub.models.LlamaBackbone: {"transformer_layers": True},
    keras_hub.models.Llama3Backbone: {"transformer_layers": True},
    keras_hub.models.MistralBackbone: {"transformer_layers": True},
}
# What the configuration of an adapted backbone has besides.
ADAPTATION = ("head_groups", "layers", "dense_below", "num_global_tokens", "rotary_scale")


class AdaptedBackbone:
    """What the adapted backbones add to those of KerasHub: other heads.

    `rt_keras.adapt` makes them, with the weights of a model.

    Args:
        head_groups: list of `HeadGroup`, or of their configurations, that each chosen block gets
            anew.
        layers: list of int, the chosen blocks, from 0; None, the default, for all. The others keep
            full attention, or a window where they had one.
        dense_below, num_global_tokens: see `rt_keras.adapt`.
        rotary_scale: float, by which rotary positions are divided. Defaults to 1.
        **kwargs: arguments of the backbone.
    """

    def __init__(
        self,
        *,
        head_groups,
        layers=None,
        dense_below=None,
        num_global_tokens=None,
        rotary_scale=1.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.rotary_scale = rotary_scale
        self.dense_below, self.num_global_tokens = dense_below, num_global_tokens
        self.layers_adapted = layers
        self.head_group_configs = [head_group_config(group) for group in head_groups]
        blocks = list(attention_blocks(self))
        check_layers(layers, len(blocks))
        for number, (block, causal) in enumerate(blocks):
            old = getattr(block, NAME)
            groups, tokens = [_original_heads(old)], None
            if layers is None or number in layers:
                groups = new_head_groups(
                    self.head_group_configs, _num_heads(old), block.dtype_policy, dense_below
                )
                tokens = num_global_tokens
            new = new_attention(old, groups, causal, tokens, rotary_scale)
            replace_attention(block, new)
        self._functional_layer_ids = {id(layer) for layer in self._flatten_layers()}

    def get_config(self):
        return {
            **super().get_config(),
            "head_groups": list(self.head_group_configs),
            "layers": self.layers_adapted,
            "dense_below": self.dense_below,
            "num_global_tokens": self.num_global_tokens,
            "rotary_scale": self.rotary_scale,
        }


def attention_blocks(backbone):
    """The blocks of a backbone with self-attention, and whether each is causal.

    Args:
        backbone: a backbone of `STACKS`, or an adapted one.

    Yields:
        Tuples of a layer and a bool.
    """
    for name, causal in stacks(type(backbone)).items():
        for block in getattr(backbone, name):
            yield block, causal


def attention_layers(backbone):
    """The self-attention of each of a backbone's blocks, as a list."""
    return [getattr(block, NAME) for block, _ in attention_blocks(backbone)]


def backbone_of(model):
    """The backbone of a task, or the model itself if it is none."""
    return model.backbone if isinstance(model, keras_hub.models.Task) else model


def stacks(cls):
    """The entry of `STACKS` of a class or of the class that it adapts."""
    return next(STACKS[base] for base in cls.__mro__ if base in STACKS)


def head_group_config(group):
    """The configuration of a head group, or of one that is given by it already."""
    return group if isinstance(group, dict) else keras.saving.serialize_keras_object(group)


def new_head_groups(configs, num_heads, dtype, dense_below=None):
    """Head groups for one attention layer.

    Args:
        configs: list of configurations of head groups.
        num_heads: int, the heads of the layer.
        dtype: dtype policy of the layer.
        dense_below: int, see `HeadGroup`; None, the default, for what the configurations say.

    Returns:
        A list of head groups, new ones.

    Raises:
        ValueError: if they have another number of heads in all, or if in some of them, but not in
            all, queries are their own keys.
    """
    dtype = keras.saving.serialize_keras_object(dtype)
    groups = []
    for config in configs:
        arguments = {**config["config"], "dtype": dtype}
        if dense_below is not None:
            arguments["dense_below"] = dense_below
        arguments.pop("name", None)
        groups.append(keras.saving.deserialize_keras_object({**config, "config": arguments}))
    if len({group.share_qk for group in groups}) > 1:
        raise ValueError(
            "All head groups must have share_qk=True, and then have the model's queries alone, or "
            f"none. Received: {', '.join(type(group).__name__ for group in groups)}"
        )
    given = sum(group.num_heads for group in groups)
    if given != num_heads:
        raise ValueError(
            f"head_groups must have as many heads as the model's attention, {num_heads}. "
            f"Received: {given}"
        )
    return groups


def check_layers(layers, count):
    """Raises a ValueError if one of the numbers of chosen layers is not below their count."""
    wrong = [number for number in layers or () if number not in range(count)]
    if wrong:
        raise ValueError(f"layers must be from 0 to {count - 1}. Received: layers={layers}")


def _original_heads(old):
    """The heads that a KerasHub block has."""
    window = getattr(old, "_sliding_window", None)
    if window is None:
        return FullHeads(_num_heads(old), dtype=old.dtype_policy)
    return LocalHeads(_num_heads(old), window, sliding_window=window, dtype=old.dtype_policy)


def _num_heads(old):
    return old._query_dense.partial_output_shape[-2]


def _adapted(cls):
    """The adapted class of a backbone."""
    made = type(f"Adapted{cls.__name__}", (AdaptedBackbone, cls), {"__module__": __name__})
    made.__doc__ = f"`keras_hub.models.{cls.__name__}` with heads of this package."
    return keras.saving.register_keras_serializable(package="rt_keras")(made)


# By the class that it adapts.
BACKBONES = {cls: _adapted(cls) for cls in STACKS}
