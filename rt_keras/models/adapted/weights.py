"""Weights and settings of a model for its copy, which differs in attention and positions."""

import functools

import keras

from rt_keras.keras_internals import begin_with, layers_of
from rt_keras.layers.multi_head_attention import MultiHeadAttention
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
        attention = zip(attention_layers(source), attention_layers(made))
        values = copied_values(source, made, attention, position_extension)
        copy_settings(source, made)
        for weight, value in values:
            begin_with(weight, value)
    return made


def original_backbone(backbone):
    """Returns a backbone of KerasHub's class with the weights of an adapted one."""
    return made_with_weights_of(backbone, backbone.original_class, backbone.original_config())


def task_with_backbone(cls, task, backbone, preprocessor):
    """Returns a task with a new backbone, and with the other weights and options of a task."""
    config = {**task.get_config(), "backbone": backbone, "preprocessor": preprocessor}
    made = cls.from_config(config)
    copy_settings(task, made)
    shared = {id(weight) for weight in backbone.weights}
    for weight, target in weight_pairs(task, made):
        if id(target) not in shared:
            target.assign(weight)
    return made


def copied_values(source, target, attention, position_extension=None):
    """Returns what the weights of a copy get from a model or layer.

    Args:
        source, target: the model or layer, and its copy.
        attention: pairs of their attention layers.
        position_extension: see `rt_keras.adapt`. Defaults to None, for the same number of
            positions.

    Returns:
        List of pairs of a weight of the copy and a function that returns its value.

    Raises:
        ValueError: if a weight has another shape, or attention is quantized or has LoRA.
    """
    values = {}
    for pair in attention:
        values |= _attention_values(*pair)
    for weight, copy in weight_pairs(source, target):
        value = functools.partial(_value, weight, copy, position_extension)
        values.setdefault(id(copy), value)
    return [(weight, values[id(weight)]) for weight in target.weights if id(weight) in values]


def _value(weight, target, position_extension):
    if weight.shape == target.shape:
        return weight.value
    if position_extension is None or weight.shape[1:] != target.shape[1:]:
        raise ValueError(f"{weight.path} has shape {weight.shape}, not {target.shape}")
    return extended(weight.numpy(), target.shape[0], position_extension)


def _attention_values(source, target):
    """Returns the weights of an attention layer's dense layers in the layout of another one.

    Kernels are `[features, heads * depth]` in this package. In Keras and KerasHub, they are
    `[features, heads, depth]`, or `[heads, features, depth]` in Gemma. Heads that use queries as
    keys have no key kernel. If only the target has one, it gets the query kernel.

    Returns:
        Dictionary from the id of each weight to a function that returns its value.
    """
    values = {}
    for old, new in _dense_pairs(source, target):
        if old.quantization_mode is not None:
            raise ValueError(
                f"{source.path} is quantized. Adapt or restore a model before you quantize it"
            )
        if old.lora_enabled:
            raise ValueError(
                f"{source.path} has LoRA, whose weights have other axes in the new attention. Save "
                "and load the model, which adds them to the kernels, or enable LoRA afterwards"
            )
        values[id(new.kernel)] = functools.partial(_kernel, old, new)
        if old.bias is not None:
            values[id(new.bias)] = functools.partial(keras.ops.reshape, old.bias, new.bias.shape)
    return values


def _dense_pairs(source, target):
    """Yields pairs of the dense layers of two attention layers."""
    for name in DENSE:
        old, new = dense_of(source, name), dense_of(target, name)
        if new is not None:
            yield old or dense_of(source, "query_dense"), new


def _kernel(source, target):
    """Returns the kernel of a dense layer in the shape of another's."""
    value, shape = source.kernel, target.kernel.shape
    if _heads_first(source):
        # [features, heads, depth]
        value = keras.ops.swapaxes(value, 0, 1)
    if not _heads_first(target):
        return keras.ops.reshape(value, shape)
    heads, features, depth = shape
    return keras.ops.swapaxes(keras.ops.reshape(value, [features, heads, depth]), 0, 1)


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
            pairs += _dense_pairs(old, new)


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
