"""KerasHub's backbones with the attention of this package."""

import keras
import keras_hub

from rt_keras.layers import FullHeads, LocalHeads
from rt_keras.layers.head_group import HeadGroup
from rt_keras.models.adapted.adaptation import adaptation_of
from rt_keras.models.adapted.architectures import ARCHITECTURES, architecture, left_out
from rt_keras.models.adapted.attention_layers import (
    new_attention,
    num_heads,
    replace_attention,
    window_of,
)
from rt_keras.models.kept_arguments import KeptArguments
from rt_keras.models.litert import LiteRTExport
from rt_keras.ops.blocks import ceil_div

# Blocks that a window is cut into: more waste fewer keys, and make smaller matrices.
BLOCKS_OF_WINDOW = 8


class AdaptedBackbone(KeptArguments, LiteRTExport):
    """What the adapted backbones add to those of KerasHub: other heads.

    `rt_keras.adapt` makes them, with the weights of a model.

    Args:
        head_groups: list of `HeadGroup`, or of their configurations, that each chosen block gets
            anew.
        layers: list of int, the chosen blocks, from 0; "global" for those without a window; None,
            the default, for all. The others keep full attention, or a window where they had one.
        dense_below, num_global_tokens: see `rt_keras.adapt`.
        rotary_scale: float, by which rotary positions are divided. Defaults to 1.
        trained_length: int, the length of the sequences that the model was trained on; None, the
            default, if that is not known.
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
        trained_length=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        # `layers` is an attribute of every Keras model.
        self.keep_arguments(locals(), leave=["head_groups", "layers"])
        self.layers_adapted = layers
        self.head_group_configs = [head_group_config(group) for group in head_groups]
        made_of, blocks = architecture(self), list(attention_blocks(self))
        attention = [getattr(block, made_of.attention) for block, _ in blocks]
        chosen = chosen_layers(layers, [window_of(layer) for layer in attention])
        self._chosen_layers = tuple(sorted(chosen))
        for number, ((block, causal), old) in enumerate(zip(blocks, attention)):
            groups, tokens = [_original_heads(old)], None
            if number in chosen:
                groups = new_head_groups(
                    self.head_group_configs, num_heads(old), block.dtype_policy, dense_below
                )
                tokens = num_global_tokens
            new = new_attention(old, groups, causal, tokens, rotary_scale)
            replace_attention(block, made_of, new)

    @property
    def adaptation(self):
        """What each attention layer reads and keeps, an `Adaptation`; printed, a table."""
        return adaptation_of(attention_layers(self), self._chosen_layers)

    def get_config(self):
        config = super().get_config()
        return {
            **config,
            **left_out(self, config),
            "head_groups": list(self.head_group_configs),
            "layers": self.layers_adapted,
        }


def attention_blocks(backbone):
    """The blocks of a backbone with self-attention, and whether each is causal.

    Args:
        backbone: a backbone of `ARCHITECTURES`, or an adapted one.

    Yields:
        Tuples of a layer and a bool.
    """
    for name, causal in architecture(backbone).stacks.items():
        for block in getattr(backbone, name):
            yield block, causal


def attention_layers(backbone):
    """The self-attention of each of a backbone's blocks, as a list."""
    name = architecture(backbone).attention
    return [getattr(block, name) for block, _ in attention_blocks(backbone)]


def backbone_of(model):
    """The backbone of a task, or the model itself if it is none."""
    return model.backbone if isinstance(model, keras_hub.models.Task) else model


def check_head_groups(head_groups):
    """Raises a ValueError if this is not a list of head groups, or of their configurations."""
    is_list = isinstance(head_groups, (list, tuple)) and len(head_groups) > 0
    if not is_list or not all(isinstance(group, (HeadGroup, dict)) for group in head_groups):
        raise ValueError(
            "head_groups must be a list of at least one head group, such as "
            f"[LocalHeads(4, block_size=64)]. Received: head_groups={head_groups!r}"
        )


def head_group_config(group):
    """The configuration of a head group, or of one that is given by it already."""
    return group if isinstance(group, dict) else keras.saving.serialize_keras_object(group)


def new_head_groups(configs, num_heads, dtype, dense_below=None):
    """Head groups for one attention layer.

    Args:
        configs: list of configurations of head groups.
        num_heads: int, the heads of the layer.
        dtype: dtype policy of the layer.
        dense_below: int, see `HeadGroup`, for groups that can have it; None, the default, for what
            the configurations say.

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
        arguments.pop("name", None)
        group = keras.saving.deserialize_keras_object({**config, "config": arguments})
        if dense_below is not None and group.can_be_dense:
            group = type(group).from_config({**group.get_config(), "dense_below": dense_below})
        groups.append(group)
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


def chosen_layers(layers, windows):
    """The numbers of the chosen layers.

    Args:
        layers: list of int, "global" or None; see `AdaptedBackbone`.
        windows: list of the window of each layer, None for full attention.

    Returns:
        A set of ints.

    Raises:
        ValueError: if a number is not below their count, or none has full attention.

    >>> chosen_layers("global", [512, 512, None])
    {2}
    """
    if layers is None:
        return set(range(len(windows)))
    if layers == "global":
        found = {number for number, window in enumerate(windows) if window is None}
        if not found:
            raise ValueError('layers="global": every layer of the model has a window')
        return found
    wrong = isinstance(layers, str) or any(x not in range(len(windows)) for x in layers)
    if wrong:
        raise ValueError(
            f'layers must be "global" or a list of ints from 0 to {len(windows) - 1}. Received: '
            f"layers={layers!r}"
        )
    return set(layers)


def _original_heads(old):
    """The heads that a KerasHub block has."""
    window, heads = window_of(old), num_heads(old)
    if window is None:
        return FullHeads(heads, dtype=old.dtype_policy)
    return LocalHeads(
        heads,
        ceil_div(window, BLOCKS_OF_WINDOW),
        look_back=BLOCKS_OF_WINDOW,
        sliding_window=window,
        dtype=old.dtype_policy,
    )


def _adapted(cls):
    """The adapted class of a backbone."""
    made = type(f"Adapted{cls.__name__}", (AdaptedBackbone, cls), {"__module__": __name__})
    made.__doc__ = f"`keras_hub.models.{cls.__name__}` with heads of this package."
    return keras.saving.register_keras_serializable(package="rt_keras")(made)


# By the class that it adapts.
BACKBONES = {cls: _adapted(cls) for cls in ARCHITECTURES}
