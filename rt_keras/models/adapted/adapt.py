"""`adapt` and `restore`: this package's attention in a model that is already there, and back."""

import functools
import inspect
import os

import keras
import keras_hub

from rt_keras.models.adapted.architectures import check_known, left_out
from rt_keras.models.adapted.attention_layers import num_heads, window_of
from rt_keras.models.adapted.backbones import (
    BACKBONES,
    AdaptedBackbone,
    attention_layers,
    backbone_of,
    check_head_groups,
    chosen_layers,
    head_group_config,
    new_head_groups,
)
from rt_keras.models.adapted.default_heads import default_head_groups
from rt_keras.models.adapted.folders import load_model
from rt_keras.models.adapted.graphs import adapt_graph, restore_graph
from rt_keras.models.adapted.positions import (
    check_extension,
    config_for_length,
    preprocessor_for_length,
)
from rt_keras.models.adapted.tasks import TASKS
from rt_keras.models.adapted.tokenizers import adapted_preprocessor, restored_preprocessor
from rt_keras.models.adapted.weights import made_with_weights_of


def adapt(
    model,
    head_groups=None,
    layers=None,
    keys=None,
    dense_below=None,
    num_global_tokens=None,
    max_sequence_length=None,
    trained_length=None,
    position_extension="repeat",
    dtype=None,
):
    """A copy of a model with other heads, and with its weights.

    Args:
        model: a KerasHub backbone or task, of those in `rt_keras.models.adapted.backbones`; or a
            functional or `Sequential` model that calls `keras.layers.MultiHeadAttention`; or a
            string or path, the folder of a pretrained model, in the layout of Hugging Face or as
            KerasHub's `save_to_preset` writes it; or string, the name of a preset of KerasHub. Of a
            folder or preset there is one copy of the weights in memory at any time, and the
            preprocessor packs as many tokens as the model was trained on, where the files say so.
        head_groups: list of `HeadGroup`, as many heads as the attention has. Each layer gets its
            own. Routing heads with `normalize=False` attend by the queries and keys as the model
            has learnt them. Heads whose queries are their own keys lose the model's keys. None, the
            default, for heads of `Window`, in decoders `FirstTokens`, and `SelectedBlocks` in the
            layers without a window. In decoders, these keep nearly all of what full attention
            finds.
        layers: list of int, the attention layers that get them, from 0; "global" for those without
            a window; None, the default, for all.
        keys: int, without `head_groups`: how many keys a query reads at most beyond its window and
            the first tokens, a multiple of 4, or of 2 in encoders. Defaults to 128.
        dense_below: int, the length of inputs below which attention stays full; None, the default,
            for none.
        num_global_tokens: int, how many tokens at the beginning see all others and are seen by all,
            such as the one that a classifier reads; see `MultiHeadAttention`. For models of
            KerasHub, and without a cache, as in encoders. None, the default, for none.
        max_sequence_length: int, at least what the model takes, for longer sequences: learned
            positions become more, rotary ones are scaled (but a restored model has the original's),
            and the preprocessor of a task packs as many tokens. None, the default, to leave
            positions as they are.
        trained_length: int, the length that a model with rotary positions was trained on; needed
            for those if `max_sequence_length` is given. Defaults to what the files of a folder say.
        position_extension: "repeat", the default, or "interpolate": how more learned positions are
            made of those that there are.
        dtype: dtype policy of a model from a folder or preset; None, the default, for Keras's
            global one.

    Returns:
        A model of the same kind, an ordinary Keras model. `model` stays as it is.

    Raises:
        ValueError: if there is no such folder or preset, it is incomplete or damaged, the model's
            attention is not known, is quantized or has been adapted, `head_groups` is not a list of
            head groups, heads or layers do not fit the model, it cannot have that length, or it
            needs `head_groups`: models with an encoder and a decoder, and those of
            `MultiHeadAttention`.

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
            raise ValueError(f"keys goes without head_groups alone. Received: keys={keys}")
    elif layers is not None:
        raise ValueError(f"layers goes with head_groups alone. Received: layers={layers!r}")
    check_extension(position_extension)
    packed = max_sequence_length
    if isinstance(model, (str, os.PathLike)):
        check = functools.partial(_check_fits, head_groups, layers, keys)
        model, found = load_model(model, dtype, check)
        packed = packed or found
        if "max_sequence_length" not in backbone_of(model).get_config():
            trained_length = trained_length or found
    elif dtype is not None:
        raise ValueError(
            f"dtype is for folders and presets; a model has its own. Received: {dtype!r}"
        )
    backbone = backbone_of(model)
    if not isinstance(backbone, keras.Model):
        raise ValueError(
            f"model must be a Keras model, a folder or the name of a preset. Received: {model!r}"
        )
    if not isinstance(backbone, keras_hub.models.Backbone):
        if max_sequence_length is not None:
            raise ValueError("max_sequence_length is for models of KerasHub alone")
        if num_global_tokens is not None:
            raise ValueError("num_global_tokens is for models of KerasHub alone")
        if head_groups is None:
            raise ValueError("head_groups must be given, but for models of KerasHub")
        return adapt_graph(model, head_groups, layers, dense_below)
    if isinstance(backbone, AdaptedBackbone):
        raise ValueError(f"{backbone.name} is adapted already; restore() it first")
    check_known(backbone)
    head_groups, layers = _heads_and_layers(backbone, head_groups, layers, keys)
    if model is not backbone and type(model) not in TASKS:
        raise ValueError(
            f"{type(model).__name__} is no task of KerasHub's own; adapt its backbone, and make "
            "the task anew"
        )
    config = backbone.get_config()
    config |= left_out(backbone, config)
    if max_sequence_length is not None:
        config = config_for_length(config, max_sequence_length, trained_length)
    if "max_sequence_length" not in config:
        config["trained_length"] = trained_length
    config |= {"head_groups": head_groups, "layers": layers, "dense_below": dense_below}
    config["num_global_tokens"] = num_global_tokens
    adapted = made_with_weights_of(backbone, BACKBONES[type(backbone)], config, position_extension)
    if model is backbone:
        return adapted
    preprocessor = adapted_preprocessor(model.preprocessor)
    if packed is not None:
        preprocessor = preprocessor_for_length(preprocessor, packed)
    return _with_backbone(TASKS[type(model)], model, adapted, preprocessor)


def restore(model):
    """A copy of an adapted model with the original's attention, and with its weights.

    Args:
        model: what `adapt` returned, trained since or not.

    Returns:
        A model of the original's class. Weights that only the heads here have are left out.

    Raises:
        ValueError: if the model is not adapted, or is quantized.
    """
    backbone = backbone_of(model)
    if not isinstance(backbone, keras_hub.models.Backbone):
        return restore_graph(model)
    if not isinstance(backbone, AdaptedBackbone):
        raise ValueError(f"{backbone.name} was not made by adapt(); there is nothing to restore")
    config = backbone.get_config()
    for argument in inspect.getfullargspec(AdaptedBackbone.__init__).kwonlyargs:
        del config[argument]
    restored = made_with_weights_of(backbone, _original(backbone), config)
    if model is backbone:
        return restored
    preprocessor = restored_preprocessor(model.preprocessor)
    return _with_backbone(_original(model), model, restored, preprocessor)


def _heads_and_layers(backbone, head_groups, layers, keys):
    """What is asked for, or the heads that a backbone gets without being asked."""
    if head_groups is not None:
        return head_groups, layers
    return default_head_groups(backbone, keys)


def _check_fits(head_groups, layers, keys, backbone):
    """Raises a ValueError if a backbone cannot have heads, before it has its weights."""
    check_known(backbone)
    head_groups, layers = _heads_and_layers(backbone, head_groups, layers, keys)
    attention = attention_layers(backbone)
    chosen = chosen_layers(layers, [window_of(layer) for layer in attention])
    configs = [head_group_config(group) for group in head_groups]
    for number in chosen:
        new_head_groups(configs, num_heads(attention[number]), backbone.dtype_policy)


def _original(model):
    """The class of KerasHub that an adapted model's is made of."""
    return type(model).__bases__[-1]


def _with_backbone(cls, task, backbone, preprocessor):
    """A task of a class with another's configuration and weights."""
    config = {**task.get_config(), "backbone": backbone, "preprocessor": preprocessor}
    of_backbone = {id(weight) for weight in task.backbone.weights}
    made = cls.from_config(config)
    targets = {weight.path: weight for weight in made.weights}
    for weight in task.weights:
        if id(weight) not in of_backbone:
            targets[weight.path].assign(weight)
    return made
