"""Copying of what was set on layers after their construction, which their arguments lack."""

import keras

from rt_keras.keras_internals import layers_of
from rt_keras.layers import MultiHeadAttention
from rt_keras.layers.split_heads import HeadConstraint
from rt_keras.models.adapted.attention_layers import dense_pairs


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
