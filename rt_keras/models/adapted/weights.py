"""Copying of weights to a model that differs only in attention and positions."""

import functools

import keras

from rt_keras.models.adapted.architectures import backbone_from_config
from rt_keras.models.adapted.attention_layers import attention_values
from rt_keras.models.adapted.backbones import attention_layers
from rt_keras.models.adapted.deferred import begin_with
from rt_keras.models.adapted.positions import extended


def made_with_weights_of(source, cls, config, position_extension=None):
    """Creates a backbone that starts with another's weights, matched by their paths.

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
        ValueError: if a weight of the source has no counterpart of its shape.
    """
    # Variables created inside are initialized at the end, each by its initializer.
    with keras.StatelessScope():
        made = backbone_from_config(cls, config)
        values, replaced = {}, set()
        for old, new in zip(attention_layers(source), attention_layers(made)):
            values |= attention_values(old, new)
            replaced |= {id(weight) for weight in old.weights}
        targets = {weight.path: weight for weight in made.weights}
        for weight in source.weights:
            target = targets.get(weight.path)
            if target is not None and id(target) not in values:
                values[id(target)] = functools.partial(_value, weight, target, position_extension)
            elif target is None and id(weight) not in replaced:
                raise ValueError(f"{made.name} has no weight {weight.path}, which the model has")
        for weight in made.weights:
            if id(weight) in values:
                begin_with(weight, values[id(weight)])
    return made


def _value(weight, target, position_extension):
    if weight.shape == target.shape:
        return weight.value
    if position_extension is None or weight.shape[1:] != target.shape[1:]:
        raise ValueError(f"{weight.path} has shape {weight.shape}, not {target.shape}")
    return extended(weight.numpy(), target.shape[0], position_extension)
