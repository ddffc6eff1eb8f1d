"""Copying of weights to a model that differs only in attention and positions."""

import functools
import inspect

import keras

from rt_keras.models.adapted.architectures import backbone_from_config
from rt_keras.models.adapted.attention_layers import attention_values
from rt_keras.models.adapted.backbones import AdaptedBackbone, attention_layers
from rt_keras.models.adapted.deferred import begin_with
from rt_keras.models.adapted.positions import extended
from rt_keras.models.adapted.settings import copy_settings, weight_pairs


def made_with_weights_of(source, cls, config, position_extension=None):
    """Creates a backbone that starts with another's weights and settings.

    Variables that get another's weights are not initialized first. Weights of the same shape share
    their memory until one of the models changes them, because TensorFlow copies shared memory on
    write.

    Args:
        source: backbone.
        cls: class of the new backbone.
        config: dictionary, configuration of the new backbone.
        position_extension: see `rt_keras.adapt`. Defaults to None, for the same number of
            positions.

    Returns:
        The new backbone. Weights that the source lacks, such as centroids, are initialized.

    Raises:
        ValueError: if a weight has another shape, or attention is quantized or has LoRA.
    """
    # Variables created inside are initialized at the end, each by its initializer.
    with keras.StatelessScope():
        made = backbone_from_config(cls, config)
        values = {}
        for old, new in zip(attention_layers(source), attention_layers(made)):
            values |= attention_values(old, new)
        copy_settings(source, made)
        for weight, target in weight_pairs(source, made):
            value = functools.partial(_value, weight, target, position_extension)
            values.setdefault(id(target), value)
        for weight in made.weights:
            if id(weight) in values:
                begin_with(weight, values[id(weight)])
    return made


def original_backbone(backbone):
    """Returns a backbone of KerasHub's class with the weights of an adapted one."""
    config = backbone.get_config()
    for argument in inspect.getfullargspec(AdaptedBackbone.__init__).kwonlyargs:
        del config[argument]
    return made_with_weights_of(backbone, type(backbone).__bases__[-1], config)


def _value(weight, target, position_extension):
    if weight.shape == target.shape:
        return weight.value
    if position_extension is None or weight.shape[1:] != target.shape[1:]:
        raise ValueError(f"{weight.path} has shape {weight.shape}, not {target.shape}")
    return extended(weight.numpy(), target.shape[0], position_extension)
