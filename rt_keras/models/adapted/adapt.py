"""`adapt` and `restore`: this package's attention in a model that is already there, and back."""

import keras_hub

from rt_keras.models.adapted.attention_layers import copy_kernels
from rt_keras.models.adapted.backbones import (
    ADAPTATION,
    BACKBONES,
    AdaptedBackbone,
    attention_layers,
    backbone_of,
    check_layers,
    head_group_config,
    new_head_groups,
)
from rt_keras.models.adapted.graphs import adapt_graph, restore_graph
from rt_keras.models.adapted.positions import (
    check_extension,
    config_for_length,
    extended,
    preprocessor_for_length,
)
from rt_keras.models.adapted.tasks import TASKS


def adapt(
    model,
    head_groups,
    layers=None,
    dense_below=None,
    num_global_tokens=None,
    max_sequence_length=None,
    trained_length=None,
    position_extension="repeat",
):
    """A copy of a model with other heads, and with its weights.

    Args:
        model: a KerasHub backbone or task, of those in `rt_keras.models.adapted.backbones`; or a
            functional or `Sequential` model that calls `keras.layers.MultiHeadAttention`.
        head_groups: list of `HeadGroup`, as many heads as the attention has. Each layer gets its
            own. Routing heads with `normalize=False` attend by the queries and keys as the model
            has learnt them. Heads whose queries are their own keys lose the model's keys.
        layers: list of int, the attention layers that get them, from 0; None, the default, for
            all.
        dense_below: int, the length of inputs below which attention stays full; None, the default,
            for none.
        num_global_tokens: int, how many tokens at the beginning see all others and are seen by all,
            such as the one that a classifier reads; see `MultiHeadAttention`. For models of
            KerasHub, and without a cache, as in encoders. None, the default, for none.
        max_sequence_length: int, for longer sequences than the model takes: learned positions
            become more, rotary ones are scaled (but a restored model has the original's), and the
            preprocessor of a task packs as many tokens. None, the default, to leave positions as
            they are.
        trained_length: int, the length that a model with rotary positions was trained on; needed
            for those if `max_sequence_length` is given.
        position_extension: "repeat", the default, or "interpolate": how more learned positions are
            made of those that there are.

    Returns:
        A model of the same kind, an ordinary Keras model. `model` stays as it is.

    Raises:
        ValueError: if the model's attention is not known, is quantized or has been adapted, heads
            or layers do not fit it, or it cannot have that length.

    >>> import keras_hub, rt_keras
    >>> from rt_keras.layers import FullHeads, LocalHeads
    >>> bert = keras_hub.models.BertBackbone(20, 1, 2, 8, 8, max_sequence_length=12)
    >>> local = rt_keras.adapt(bert, [LocalHeads(1, block_size=4), FullHeads(1)])
    >>> rt_keras.restore(local).count_params() == bert.count_params()
    True
    """
    backbone = backbone_of(model)
    if not isinstance(backbone, keras_hub.models.Backbone):
        if max_sequence_length is not None:
            raise ValueError("max_sequence_length is for models of KerasHub alone")
        if num_global_tokens is not None:
            raise ValueError("num_global_tokens is for models of KerasHub alone")
        return _adapt_graph(model, head_groups, layers, dense_below)
    if isinstance(backbone, AdaptedBackbone):
        raise ValueError(f"{backbone.name} is adapted already; restore() it first")
    if type(backbone) not in BACKBONES:
        known = ", ".join(cls.__name__ for cls in BACKBONES)
        raise ValueError(
            f"The attention of {type(backbone).__name__} is not known. Known: {known}, and tasks "
            "on them"
        )
    if model is not backbone and type(model) not in TASKS:
        raise ValueError(
            f"{type(model).__name__} is no task of KerasHub's own; adapt its backbone, and make "
            "the task anew"
        )
    check_extension(position_extension)
    config = {**backbone.get_config(), "rotary_scale": 1.0}
    if max_sequence_length is not None:
        config = config_for_length(config, max_sequence_length, trained_length)
    config |= {"head_groups": head_groups, "layers": layers, "dense_below": dense_below}
    config["num_global_tokens"] = num_global_tokens
    adapted = BACKBONES[type(backbone)].from_config(config)
    _copy_weights(backbone, adapted, position_extension)
    if model is backbone:
        return adapted
    preprocessor = model.preprocessor
    if max_sequence_length is not None:
        preprocessor = preprocessor_for_length(preprocessor, max_sequence_length)
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
    for name in ADAPTATION:
        del config[name]
    restored = _original(BACKBONES, type(backbone)).from_config(config)
    _copy_weights(backbone, restored)
    if model is backbone:
        return restored
    return _with_backbone(_original(TASKS, type(model)), model, restored, model.preprocessor)


def _adapt_graph(model, head_groups, layers, dense_below):
    configs = [head_group_config(group) for group in head_groups]

    def make_groups(count, number, num_heads):
        check_layers(layers, count)
        if layers is not None and number not in layers:
            return None
        return new_head_groups(configs, num_heads, model.dtype_policy, dense_below)

    return adapt_graph(model, make_groups)


def _original(classes, adapted):
    return next(cls for cls, made in classes.items() if made is adapted)


def _copy_weights(source, target, position_extension=None):
    """Copies the weights of a backbone to one that differs in attention and positions alone."""
    attention = [attention_layers(model) for model in (source, target)]
    for old, new in zip(*attention):
        copy_kernels(old, new)
    rest = [_weights_without(*pair) for pair in zip((source, target), attention)]
    for old, new in zip(*rest, strict=True):
        if old.shape == new.shape:
            new.assign(old)
        else:
            new.assign(extended(old.numpy(), new.shape[0], position_extension))


def _weights_without(model, layers):
    inside = {id(weight) for layer in layers for weight in layer.weights}
    return [weight for weight in model.weights if id(weight) not in inside]


def _with_backbone(cls, task, backbone, preprocessor):
    """A task of a class with another's configuration and weights."""
    config = {**task.get_config(), "backbone": backbone, "preprocessor": preprocessor}
    made = cls.from_config(config)
    rest = [_weights_without(model, [model.backbone]) for model in (task, made)]
    for old, new in zip(*rest, strict=True):
        new.assign(old)
    return made
