"""KerasHub backbones with the attention of this package."""

import functools

import keras
import keras_hub

from rt_keras.arguments import wrong_value
from rt_keras.keras_internals import all_layers_of, part_of, policy_inside
from rt_keras.layers.head_group import HeadGroup
from rt_keras.layers.kinds import FullHeads, LocalHeads
from rt_keras.layers.saved_arguments import saved_dtype
from rt_keras.models.adapted.adaptation import adaptation_of
from rt_keras.models.adapted.architectures import (
    ARCHITECTURES,
    adapted_class,
    architecture,
    attention_blocks,
    attention_layers,
    backbone_from_config,
    config_with_all,
)
from rt_keras.models.adapted.attention import (
    new_attention,
    num_heads,
    replace_attention,
    window_of,
)
from rt_keras.models.documents import have_documents, segments_of, separated
from rt_keras.models.emulated_dtypes import warn_if_emulated
from rt_keras.models.generation import check_positions
from rt_keras.models.left_padding import call_from_first_tokens
from rt_keras.models.shared_blocks import share_equal_blocks
from rt_keras.ops.blocks import ceil_div

# Number of blocks in a window. More blocks waste fewer keys, but make matrices smaller.
BLOCKS_OF_WINDOW = 8


class AdaptedBackbone:
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
        self.head_group_configs = [head_group_config(group) for group in head_groups]
        # `layers` is an attribute of every Keras model.
        self.layers_adapted, self.num_global_tokens = layers, num_global_tokens
        self.rotary_scale, self.rotary_options = rotary_scale, rotary_options
        self.trained_length = trained_length
        self.norm_epsilon, self.exact_gelu = norm_epsilon, exact_gelu
        blocks = list(attention_blocks(self))
        windows = [window_of(layer) for layer in attention_layers(self)]
        self._chosen_layers = tuple(sorted(chosen_layers(layers, windows)))
        for layer in all_layers_of(self):
            if norm_epsilon is not None and hasattr(layer, "epsilon"):
                layer.epsilon = norm_epsilon
        for number, (block, causal) in enumerate(blocks):
            warn_if_emulated(block.compute_dtype)
            self._replace_attention(block, causal, number in self._chosen_layers)
            if exact_gelu:
                part_of(block, "feedforward_intermediate_dense").activation = keras.activations.gelu
        never = [architecture(self).cache]
        share_equal_blocks([block for block, _ in blocks], never=never)

    def _replace_attention(self, block, causal, is_chosen):
        """Gives a block the new heads if it is chosen, otherwise its own heads."""
        old = getattr(block, architecture(self).attention)
        groups, global_tokens = [_original_heads(old)], None
        if is_chosen:
            groups = new_head_groups(self.head_group_configs, num_heads(old), block.dtype_policy)
            global_tokens = self.num_global_tokens
        rotary = self.rotary_scale, self.rotary_options
        new = new_attention(old, groups, causal, global_tokens, *rotary)
        replace_attention(block, architecture(self), new)

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

    @property
    def causal_attention(self):
        """List of the attention layers that decode."""
        return [layer for layer in attention_layers(self) if layer.causal]

    @property
    def cached_decoding(self):
        """True if all heads can decode one position at a time."""
        return all(layer.cached_decoding for layer in self.causal_attention)

    @property
    def reads_chunks(self):
        """True if all heads read chunks, at a different position in each row."""
        return all(layer.reads_chunks for layer in self.causal_attention)

    def check_cached(self):
        """Raises a ValueError if heads cannot decode with a cache."""
        if not self.cached_decoding:
            raise ValueError(
                "generate() needs heads that decode with a cache, such as FullHeads, LocalHeads "
                "or RoutingHeads with assignment='nearest'"
            )

    @classmethod
    def from_config(cls, config):
        if issubclass(cls, keras_hub.models.SmolLM3Backbone):
            return backbone_from_config(cls, config)
        return super().from_config(config)

    def original_config(self):
        """Returns the configuration of KerasHub's backbone with the same weights."""
        with policy_inside(self, saved_dtype(self)):
            return config_with_all(self, super().get_config())

    def get_config(self):
        return {
            **self.original_config(),
            "head_groups": list(self.head_group_configs),
            "layers": self.layers_adapted,
            "num_global_tokens": self.num_global_tokens,
            "rotary_scale": self.rotary_scale,
            "trained_length": self.trained_length,
            "rotary_options": self.rotary_options,
            "norm_epsilon": self.norm_epsilon,
            "exact_gelu": self.exact_gelu,
        }


def check_head_groups(head_groups):
    """Raises a ValueError if the argument is not a list of head groups or configurations."""
    is_list = isinstance(head_groups, (list, tuple)) and len(head_groups) > 0
    if not is_list or not all(isinstance(group, (HeadGroup, dict)) for group in head_groups):
        needed = "a list of at least one head group, such as [LocalHeads(4, block_size=64)]"
        raise wrong_value("head_groups", needed, head_groups)


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
            f"Received: {', '.join(group.kind for group in groups)}"
        )
    total = sum(group.num_heads for group in groups)
    if total != num_heads:
        raise ValueError(
            f"head_groups must have as many heads as the model's attention, {num_heads}. "
            f"Received: {total}"
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
        without_window = {number for number, window in enumerate(windows) if window is None}
        if not without_window:
            raise ValueError('layers="global": every layer of the model has a window')
        return without_window
    if isinstance(layers, str) or any(x not in range(len(windows)) for x in layers):
        needed = f'"global" or a list of ints from 0 to {len(windows) - 1}'
        raise wrong_value("layers", needed, layers)
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


# Adapted classes by the class that they adapt.
BACKBONES = {cls: adapted_class(cls, AdaptedBackbone) for cls in ARCHITECTURES}
