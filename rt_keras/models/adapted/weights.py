"""Weights and settings of a model for its copy, which differs in attention and positions."""

import functools

import keras

from rt_keras.keras_internals import begin_with, layers_of
from rt_keras.layers import MultiHeadAttention
from rt_keras.layers.split_heads import HeadConstraint
from rt_keras.models.adapted.architectures import attention_layers, backbone_from_config
from rt_keras.models.adapted.attention import DENSE, dense_of
from rt_keras.models.adapted.positions import extended


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
    return made_with_weights_of(backbone, backbone.original_class, backbone.original_config())


def _value(weight, target, position_extension):
    if weight.shape == target.shape:
        return weight.value
    if position_extension is None or weight.shape[1:] != target.shape[1:]:
        raise ValueError(f"{weight.path} has shape {weight.shape}, not {target.shape}")
    return extended(weight.numpy(), target.shape[0], position_extension)


# Kernels of attention.


def copy_kernels(source, target):
    """Copies the dense layers of one attention layer to another; see `attention_values`."""
    values = attention_values(source, target)
    for weight in target.weights:
        if id(weight) in values:
            weight.assign(values[id(weight)]())


def attention_values(source, target):
    """Returns the weights of an attention layer's dense layers in the layout of another one.

    Kernels are `[features, heads * depth]` in this package. In Keras and KerasHub, they are
    `[features, heads, depth]`, or `[heads, features, depth]` in Gemma. Heads that use queries as
    keys have no key kernel. If only the target has one, it gets the query kernel.

    Args:
        source, target: attention layers.

    Returns:
        Dictionary from the id of each weight of the target's dense layers to a function that
        returns its value.

    Raises:
        ValueError: if the source is quantized or has LoRA.
    """
    found = {}
    for of_source, of_target in dense_pairs(source, target):
        if of_source.quantization_mode is not None:
            raise ValueError(
                f"{source.path} is quantized. Adapt or restore a model before you quantize it"
            )
        if of_source.lora_enabled:
            raise ValueError(
                f"{source.path} has LoRA, whose weights have other axes in the new attention. Save "
                "and load the model, which adds them to the kernels, or enable LoRA afterwards"
            )
        found[id(of_target.kernel)] = functools.partial(_kernel, of_source, of_target)
        if of_source.bias is not None:
            found[id(of_target.bias)] = functools.partial(
                keras.ops.reshape, of_source.bias, of_target.bias.shape
            )
    return found


def dense_pairs(source, target):
    """Yields pairs of the dense layers of two attention layers; see `attention_values`."""
    for name in DENSE:
        of_source, of_target = dense_of(source, name), dense_of(target, name)
        if of_target is not None:
            yield of_source or dense_of(source, "query_dense"), of_target


def _kernel(source, target):
    """Returns the kernel of a dense layer in the shape of another's."""
    value, shape = source.kernel, target.kernel.shape
    if _heads_first(source):
        value = keras.ops.swapaxes(value, 0, 1)
    if not _heads_first(target):
        return keras.ops.reshape(value, shape)
    return keras.ops.swapaxes(keras.ops.reshape(value, [shape[1], shape[0], shape[2]]), 0, 1)


def _heads_first(dense):
    """Returns True if a kernel is `[heads, features, depth]`."""
    if not isinstance(dense, keras.layers.EinsumDense):
        return False
    inputs, kernel = dense.equation.split("->")[0].split(",")
    return len(kernel) == 3 and kernel.index(inputs[-1]) == 1 and inputs[-2] not in kernel


# What was set on layers after their construction, which their arguments lack.


def copy_settings(source, target):
    """Copies `trainable`, dtype policies, LoRA, rates of dropout, regularizers and constraints.

    Args:
        source: model or layer.
        target: its copy, whose attention may be of another class.

    Raises:
        ValueError: if a constraint cannot be applied to a kernel with other axes.
    """
    for old, new in layer_pairs(source, target):
        if new.trainable != old.trainable:
            new.trainable = old.trainable
        new.activity_regularizer = old.activity_regularizer
        if getattr(old, "rate", None) != getattr(new, "rate", None):
            new.rate = old.rate
        for layer in (new, *getattr(new, "head_groups", ())):
            if _policy_of(layer) != _policy_of(old):
                layer.dtype_policy = _policy_of(old)
        if getattr(old, "lora_enabled", False) and not new.lora_enabled:
            new.enable_lora(old.lora_rank, lora_alpha=old.lora_alpha)
    for weight, other in weight_pairs(source, target):
        other.trainable, other.regularizer = weight.trainable, weight.regularizer
        other.constraint = _constraint_for(other, weight)


def layer_pairs(source, target):
    """Yields pairs of a layer and its copy: those given and all inside, from the outside in."""
    pairs, seen = [(source, target)], set()
    for old, new in pairs:
        if id(new) in seen:
            continue
        seen.add(id(new))
        yield old, new
        inner, copies = layers_of(old), layers_of(new)
        if [type(layer) for layer in inner] == [type(layer) for layer in copies]:
            pairs += zip(inner, copies)
            continue
        named = {layer.name: layer for layer in copies}
        pairs += [(layer, named[layer.name]) for layer in inner if layer.name in named]
        if isinstance(old, MultiHeadAttention) or isinstance(new, MultiHeadAttention):
            pairs += dense_pairs(old, new)


def weight_pairs(source, target):
    """Yields pairs of a weight and its copy, whose shape may differ in attention."""
    for pair in layer_pairs(source, target):
        inner = {id(x) for layer in pair for other in layers_of(layer) for x in other.weights}
        yield from zip(*([x for x in layer.weights if id(x) not in inner] for layer in pair))


def _policy_of(layer):
    policy = layer.dtype_policy
    if not isinstance(policy, keras.dtype_policies.DTypePolicyMap):
        return policy
    return policy[layer.path] if layer.path else policy.default_policy


def _constraint_for(target, source):
    """Returns the constraint of a weight for its copy, which may have joined or split axes."""
    constraint = source.constraint
    if constraint is None or source.shape == target.shape:
        return constraint
    if isinstance(constraint, HeadConstraint):
        return constraint.constraint
    joined, split = sorted([source.shape, target.shape], key=len)
    if len(split) == 3 and joined[0] != split[0] and joined[-1] != split[-1]:
        raise ValueError(
            f"The constraint of {source.path} cannot be kept, because the order of its axes changes"
        )
    return HeadConstraint(constraint, source.shape)
