"""`adapt` and `restore`: replacement of the attention heads of a model, and its inverse."""

import functools
import os

import keras
import keras_hub

from rt_keras.arguments import wrong_value
from rt_keras.models.adapted.architectures import (
    attention_layers,
    backbone_of,
    check_known,
    config_with_all,
    original_class,
)
from rt_keras.models.adapted.attention import num_heads, window_of
from rt_keras.models.adapted.backbones import (
    BACKBONES,
    AdaptedBackbone,
    check_head_groups,
    chosen_layers,
    have_rotary_distances,
    head_group_config,
    new_head_groups,
)
from rt_keras.models.adapted.default_heads import default_head_groups
from rt_keras.models.adapted.folders import load_model
from rt_keras.models.adapted.graphs import adapt_graph, restore_graph
from rt_keras.models.adapted.positions import (
    EXTENSIONS,
    config_for_length,
    preprocessor_for_length,
    rotary_distance_for,
)
from rt_keras.models.adapted.tasks import TASKS
from rt_keras.models.adapted.tokenizers import restored_preprocessor
from rt_keras.models.adapted.weights import (
    made_with_weights_of,
    original_backbone,
    task_with_backbone,
)


def adapt(
    model,
    head_groups=None,
    layers=None,
    keys=None,
    num_global_tokens=None,
    max_sequence_length=None,
    trained_length=None,
    position_extension="repeat",
    dtype=None,
):
    """Returns a copy of a model with other attention heads and the same weights.

    Args:
        model: a KerasHub backbone or task, of those in `rt_keras.models.adapted.architectures`; a
            functional or `Sequential` model that calls `keras.layers.MultiHeadAttention`,
            `keras.layers.GroupQueryAttention`, `keras_hub.layers.TransformerEncoder` or
            `keras_hub.layers.TransformerDecoder`; a string or path, the folder of a pretrained
            model, in Hugging Face's layout or written by KerasHub's `save_to_preset`; or a string,
            the name of a KerasHub preset. For a folder or preset, memory holds one copy of the
            weights at any time, and the preprocessor keeps as many tokens as the model was trained
            on if the files specify it.
        head_groups: list of `HeadGroup`, with as many heads as the attention has. Each layer gets
            its own copy. Routing heads with `use_query_key_norm=False` attend with the queries and
            keys that the model has learned. Heads with `share_qk=True` use the queries as keys and
            drop the model's keys. Defaults to None, for heads that keep nearly everything that full
            attention finds, in the layers without a window: in decoders `Window`, `FirstTokens` and
            `SelectedBlocks`, in encoders `ClusteredHeads` with `top_k`.
        layers: list of int, numbers of the attention layers to change, from 0; or "global" for
            those without a window. Defaults to None, for all layers, or without `head_groups` for
            those without a window.
        keys: int, without `head_groups`: maximum number of keys that a query reads beyond its
            window and the first tokens, a multiple of 4; in encoders, number of keys that it sees
            with its own weights. Defaults to None, for 128.
        num_global_tokens: int, number of first tokens that see all others and are seen by all, such
            as the one that a classifier reads; see `MultiHeadAttention`. Only for KerasHub models
            without a cache, such as encoders. Defaults to None, for no global tokens.
        max_sequence_length: int, new maximum length, at least that of the model. Learned positions
            are extended. Without `head_groups`, rotary embeddings place all keys outside the window
            at half of the trained length. With `head_groups`, positions of rotary embeddings are
            scaled, unless sets of keys have a `rotary_distance`. A restored model has the original
            positions. The preprocessor of a task keeps as many tokens. Defaults to None, for
            unchanged positions.
        trained_length: int, length that a model with rotary embeddings was trained on, required for
            those with `max_sequence_length`. Defaults to None, for the length in the files of a
            folder.
        position_extension: "repeat" or "interpolate", the method of extending learned positions.
            Defaults to "repeat".
        dtype: dtype policy of a model from a folder or preset. Defaults to None, for Keras's global
            policy.

    Returns:
        A Keras model of the same kind, with what was set on the layers of `model`, such as
        `trainable`, dtype policies, regularizers and constraints. `model` is unchanged.

    Raises:
        ValueError: if the folder or preset does not exist, is incomplete or is damaged; the model's
            attention cannot be replaced, is quantized, has LoRA or is already adapted;
            `head_groups` is not a list of head groups; the heads, layers or length do not fit the
            model; or `head_groups` is missing for a model with an encoder and a decoder, one with
            windows in all layers, or one that is not KerasHub's.

    >>> import keras_hub, rt_keras
    >>> from rt_keras.layers import FullHeads, LocalHeads
    >>> bert = keras_hub.models.BertBackbone(20, 1, 2, 8, 8, max_sequence_length=12)
    >>> local = rt_keras.adapt(bert, [LocalHeads(1, block_size=4), FullHeads(1)])
    >>> rt_keras.restore(local).count_params() == bert.count_params()
    True
    """
    if head_groups is not None:
        check_head_groups(head_groups)
        if keys is not None:
            raise ValueError(f"keys can only be set without head_groups. Received: keys={keys}")
    if position_extension not in EXTENSIONS:
        raise wrong_value("position_extension", f"one of {EXTENSIONS}", position_extension)
    sequence_length = max_sequence_length
    if isinstance(model, (str, os.PathLike)):
        check = functools.partial(_check_fits, head_groups, layers, keys)
        model, length_of_files = load_model(model, dtype, check)
        sequence_length = sequence_length or length_of_files
        if "max_sequence_length" not in backbone_of(model).get_config():
            trained_length = trained_length or length_of_files
    elif dtype is not None:
        raise ValueError(
            f"dtype can only be set for folders and presets. Received: dtype={dtype!r}"
        )
    backbone = backbone_of(model)
    if not isinstance(backbone, keras.Model):
        raise wrong_value("model", "a Keras model, a folder or the name of a preset", model)
    if not isinstance(backbone, keras_hub.models.Backbone):
        _check_graph(head_groups, max_sequence_length, num_global_tokens)
        return adapt_graph(model, head_groups, layers)
    if isinstance(backbone, AdaptedBackbone):
        raise ValueError(f"{backbone.name} is already adapted. Call restore() first")
    check_known(backbone)
    if model is not backbone and type(model) not in TASKS:
        raise ValueError(
            f"{type(model).__name__} is not a KerasHub task. Adapt its backbone, and create the "
            "task from it"
        )
    distance = rotary_distance_for(backbone.get_config(), max_sequence_length, trained_length)
    head_groups, layers = _heads_and_layers(backbone, head_groups, layers, keys, distance)
    config = config_with_all(backbone, backbone.get_config())
    if "max_sequence_length" not in config:
        config["trained_length"] = trained_length
    if max_sequence_length is not None:
        scaled = not have_rotary_distances(head_groups)
        config = config_for_length(config, max_sequence_length, trained_length, scaled)
    config |= {"head_groups": head_groups, "layers": layers, "num_global_tokens": num_global_tokens}
    # What the files of a folder say and KerasHub leaves out.
    config |= getattr(backbone, "adapted_options", {})
    adapted = made_with_weights_of(backbone, BACKBONES[type(backbone)], config, position_extension)
    if model is backbone:
        return adapted
    preprocessor = model.preprocessor
    if sequence_length is not None:
        preprocessor = preprocessor_for_length(preprocessor, sequence_length)
    return task_with_backbone(TASKS[type(model)], model, adapted, preprocessor)


def restore(model):
    """Returns a copy of an adapted model with the original attention and the current weights.

    Args:
        model: a model returned by `adapt`, trained since then or not.

    Returns:
        A model of the original class. Weights that only the adapted heads have are dropped.

    Raises:
        ValueError: if the model is not adapted, its attention is quantized or has LoRA, or its
            rotary embeddings are scaled in a way that the original class lacks, such as YaRN.

    >>> import keras_hub, rt_keras
    >>> from rt_keras.layers import LocalHeads
    >>> bert = keras_hub.models.BertBackbone(20, 1, 2, 8, 8, max_sequence_length=12)
    >>> adapted = rt_keras.adapt(bert, [LocalHeads(2, block_size=4)])
    >>> type(rt_keras.restore(adapted)).__name__
    'BertBackbone'
    """
    backbone = backbone_of(model)
    if not isinstance(backbone, keras_hub.models.Backbone):
        return restore_graph(model)
    if not isinstance(backbone, AdaptedBackbone):
        raise ValueError(f"{backbone.name} was not made by adapt(); there is nothing to restore")
    if backbone.rotary_options:
        raise ValueError(
            f"{backbone.original_class.__name__} cannot compute the rotary embeddings of the "
            f"model, {dict(backbone.rotary_options)}"
        )
    restored = original_backbone(backbone)
    if model is backbone:
        return restored
    preprocessor = restored_preprocessor(model.preprocessor)
    return task_with_backbone(original_class(model), model, restored, preprocessor)


def _check_graph(head_groups, max_sequence_length, num_global_tokens):
    """Raises a ValueError if arguments do not fit models that are not KerasHub's."""
    if max_sequence_length is not None:
        raise ValueError("max_sequence_length can only be set for KerasHub models")
    if num_global_tokens is not None:
        raise ValueError("num_global_tokens can only be set for KerasHub models")
    if head_groups is None:
        raise ValueError("head_groups is required for models that are not KerasHub's")


def _heads_and_layers(backbone, head_groups, layers, keys, rotary_distance=None):
    """Returns the given head groups and layers, or the default ones of a backbone."""
    if head_groups is not None:
        return head_groups, layers
    head_groups, without_window = default_head_groups(backbone, keys, rotary_distance)
    return head_groups, without_window if layers is None else layers


def _check_fits(head_groups, layers, keys, backbone):
    """Raises a ValueError if heads do not fit a backbone, before it has its weights."""
    check_known(backbone)
    head_groups, layers = _heads_and_layers(backbone, head_groups, layers, keys)
    attention = attention_layers(backbone)
    configs = [head_group_config(group) for group in head_groups]
    for number in chosen_layers(layers, [window_of(layer) for layer in attention]):
        new_head_groups(configs, num_heads(attention[number]), backbone.dtype_policy)
