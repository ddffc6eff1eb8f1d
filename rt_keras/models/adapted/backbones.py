"""KerasHub backbones with the attention of this package."""

import functools

import keras
import keras_hub

from rt_keras.keras_internals import all_layers_of, part_of, policy_inside
from rt_keras.layers import FullHeads, LocalHeads
from rt_keras.layers.head_group import HeadGroup
from rt_keras.layers.saved_arguments import saved_dtype
from rt_keras.models.adapted.adaptation import adaptation_of
from rt_keras.models.adapted.architectures import (
    ARCHITECTURES,
    architecture,
    backbone_from_config,
    left_out,
)
from rt_keras.models.adapted.attention_layers import (
    new_attention,
    num_heads,
    replace_attention,
    window_of,
)
from rt_keras.models.documents import have_documents, segments_of, separated
from rt_keras.models.emulated_dtypes import warn_if_emulated
from rt_keras.models.generation import check_positions
from rt_keras.models.kept_arguments import KeptArguments
from rt_keras.models.left_padding import call_from_first_tokens
from rt_keras.models.shared_blocks import share_equal_blocks
from rt_keras.ops.blocks import ceil_div

# Number of blocks in a window. More blocks waste fewer keys, but make matrices smaller.
BLOCKS_OF_WINDOW = 8


class AdaptedBackbone(KeptArguments):
    """Mixin of adapted KerasHub backbones: replaces their attention heads.

    `rt_keras.adapt` creates such backbones with the weights of a model.

    Args:
        head_groups: list of `HeadGroup` or of their configurations. Each chosen block gets its own
            copy.
        layers: list of int, numbers of the chosen blocks, from 0; or "global" for those without a
            window. The other blocks keep full attention or their window. Defaults to None, for all
            blocks.
        num_global_tokens: see `rt_keras.adapt`.
        rotary_scale: float, divisor of the positions of rotary embeddings. Defaults to 1.
        trained_length: int, length of the sequences that the model was trained on. Defaults to
            None, for an unknown length.
        rotary_options: dictionary, arguments of `keras_hub.layers.RotaryEmbedding`, such as those
            of YaRN. Defaults to None, for the backbone's own rotary embeddings.
        norm_epsilon: float, epsilon of all normalization layers. Defaults to None, for those of the
            backbone.
        exact_gelu: bool, whether feed-forward layers compute GELU without KerasHub's approximation
            in BERT. Defaults to False.
        **kwargs: arguments of the backbone.
    """

    def __init__(
        self,
        *,
        head_groups,
        layers=None,
        num_global_tokens=None,
        rotary_scale=1.0,
        trained_length=None,
        rotary_options=None,
        norm_epsilon=None,
        exact_gelu=False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        # `layers` is an attribute of every Keras model.
        self.keep_arguments(locals(), leave=["head_groups", "layers"])
        self.layers_adapted = layers
        self.head_group_configs = [head_group_config(group) for group in head_groups]
        for layer in all_layers_of(self):
            if norm_epsilon is not None and hasattr(layer, "epsilon"):
                layer.epsilon = norm_epsilon
        made_of, blocks = architecture(self), list(attention_blocks(self))
        attention = [getattr(block, made_of.attention) for block, _ in blocks]
        chosen = chosen_layers(layers, [window_of(layer) for layer in attention])
        self._chosen_layers = tuple(sorted(chosen))
        for number, ((block, causal), old) in enumerate(zip(blocks, attention)):
            warn_if_emulated(block.compute_dtype)
            groups, tokens = [_original_heads(old)], None
            if number in chosen:
                groups = new_head_groups(
                    self.head_group_configs, num_heads(old), block.dtype_policy
                )
                tokens = num_global_tokens
            new = new_attention(old, groups, causal, tokens, rotary_scale, rotary_options)
            replace_attention(block, made_of, new)
            if exact_gelu:
                part_of(block, "feedforward_intermediate_dense").activation = keras.activations.gelu
        share_equal_blocks([block for block, _ in blocks], never=[made_of.cache])

    def call(self, inputs, training=None, mask=None):
        for name, x in inputs.items():
            if name.endswith("token_ids"):
                check_positions(x.shape[1], self.longest)
        call = functools.partial(super().call, training=training, mask=mask)
        if architecture(self).embed is None:
            return call(inputs)
        if not have_documents(inputs):
            return call_from_first_tokens(call, inputs)
        if "positions" in inputs or self.longest is not None:
            raise ValueError(
                "An adapted model takes segment_ids without positions, and none with learned "
                f"positions. Received: inputs {list(inputs)} of {type(self).__name__}"
            )
        with separated(segments_of(inputs)):
            return call({name: x for name, x in inputs.items() if name != "segment_ids"})

    @property
    def longest(self):
        """The number of learned positions, or None without any."""
        return getattr(self, "max_sequence_length", None)

    @property
    def adaptation(self):
        """Summary of each attention layer, an `Adaptation`; `print` shows a table."""
        return adaptation_of(attention_layers(self), self._chosen_layers)

    @classmethod
    def from_config(cls, config):
        if issubclass(cls, keras_hub.models.SmolLM3Backbone):
            return backbone_from_config(cls, config)
        return super().from_config(config)

    def get_config(self):
        with policy_inside(self, saved_dtype(self)):
            config = super().get_config()
        return {
            **config,
            **left_out(self, config),
            "head_groups": list(self.head_group_configs),
            "layers": self.layers_adapted,
        }


def attention_blocks(backbone):
    """Yields the blocks of a backbone that have self-attention.

    Args:
        backbone: backbone of a class in `ARCHITECTURES`, or an adapted one.

    Yields:
        Tuples of a block and a bool, whether it is causal.
    """
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


def check_head_groups(head_groups):
    """Raises a ValueError if the argument is not a list of head groups or configurations."""
    is_list = isinstance(head_groups, (list, tuple)) and len(head_groups) > 0
    if not is_list or not all(isinstance(group, (HeadGroup, dict)) for group in head_groups):
        raise ValueError(
            "head_groups must be a list of at least one head group, such as "
            f"[LocalHeads(4, block_size=64)]. Received: head_groups={head_groups!r}"
        )


def have_rotary_distances(head_groups):
    """Returns whether any set of keys of head groups or their configurations has one distance."""
    groups = [
        keras.saving.deserialize_keras_object(group) if isinstance(group, dict) else group
        for group in head_groups
    ]
    sets = [key_set for group in groups for key_set in getattr(group, "key_sets", ())]
    return any(getattr(key_set, "rotary_distance", None) is not None for key_set in sets)


def head_group_config(group):
    """Returns the configuration of a head group, or the argument if it is one."""
    return group if isinstance(group, dict) else keras.saving.serialize_keras_object(group)


def new_head_groups(configs, num_heads, dtype):
    """Creates head groups for one attention layer.

    Args:
        configs: list of configurations of head groups.
        num_heads: int, number of heads of the layer.
        dtype: dtype policy of the layer.

    Returns:
        List of new head groups.

    Raises:
        ValueError: if the total number of heads differs, or some of the groups, but not all, use
            queries as keys.
    """
    dtype = keras.saving.serialize_keras_object(dtype)
    groups = []
    for config in configs:
        arguments = {**config["config"], "dtype": dtype}
        arguments.pop("name", None)
        groups.append(keras.saving.deserialize_keras_object({**config, "config": arguments}))
    if len({group.share_qk for group in groups}) > 1:
        raise ValueError(
            "Either all head groups or none must have share_qk=True, which drops the model's keys. "
            f"Received: {', '.join(type(group).__name__ for group in groups)}"
        )
    given = sum(group.num_heads for group in groups)
    if given != num_heads:
        raise ValueError(
            f"head_groups must have as many heads as the model's attention, {num_heads}. "
            f"Received: {given}"
        )
    return groups


def chosen_layers(layers, windows):
    """Returns the numbers of the chosen layers.

    Args:
        layers: list of int, "global" or None; see `AdaptedBackbone`.
        windows: list of the window of each layer, None for full attention.

    Returns:
        A set of ints.

    Raises:
        ValueError: if a number is out of range, or `layers` is "global" and no layer has full
            attention.

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
    """Returns the heads of a KerasHub block."""
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
    """Creates the adapted class of a backbone class."""
    made = type(f"Adapted{cls.__name__}", (AdaptedBackbone, cls), {"__module__": __name__})
    made.__doc__ = f"`keras_hub.models.{cls.__name__}` with heads of this package."
    return keras.saving.register_keras_serializable(package="rt_keras")(made)


# Adapted classes by the class that they adapt.
BACKBONES = {cls: _adapted(cls) for cls in ARCHITECTURES}
