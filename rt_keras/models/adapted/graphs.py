"""Replacement of the attention in functional and `Sequential` models."""

import keras

from rt_keras.layers import MultiHeadAttention
from rt_keras.layers.layers_inside import layers_inside
from rt_keras.models.adapted.attention_layers import copy_kernels
from rt_keras.models.adapted.backbones import chosen_layers, head_group_config, new_head_groups


def adapt_graph(model, head_groups, layers=None):
    """Returns a copy of a model with this package's attention instead of Keras's.

    Args:
        model: a functional or `Sequential` model.
        head_groups, layers: see `rt_keras.adapt`.

    Returns:
        A model with the same graph and weights.

    Raises:
        ValueError: if the graph has no `keras.layers.MultiHeadAttention`, or one has options that
            `MultiHeadAttention` does not support.
    """
    found = list(dict.fromkeys(layers_inside(model, keras.layers.MultiHeadAttention)))
    numbers = {id(layer): number for number, layer in enumerate(found)}
    chosen = chosen_layers(layers, [None] * len(found)) if found else ()
    configs = [head_group_config(group) for group in head_groups]

    def replacement(layer):
        if numbers.pop(id(layer), None) not in chosen:
            return None
        groups = new_head_groups(configs, layer.num_heads, model.dtype_policy)
        return _ours(layer, groups)

    made = _with_replacements(model, replacement)
    if not found or numbers:
        names = sorted({type(layer).__name__ for layer in model.layers})
        raise ValueError(
            "The model must call keras.layers.MultiHeadAttention directly, not inside another "
            f"layer. Its layers are: {', '.join(names)}"
        )
    return made


def restore_graph(model):
    """Returns a copy of a model with Keras's attention instead of this package's.

    Args:
        model: a functional or `Sequential` model.

    Returns:
        A model with the same graph and weights, except those of heads.

    Raises:
        ValueError: if the model has no `rt_keras.layers.MultiHeadAttention`.
    """
    if not layers_inside(model, MultiHeadAttention):
        raise ValueError(f"{model.name} was not made by adapt(); there is nothing to restore")
    return _with_replacements(
        model, lambda layer: _keras_own(layer) if isinstance(layer, MultiHeadAttention) else None
    )


def _with_replacements(model, replacement):
    """Returns a copy of a model in which other layers with the same kernels replace some layers."""
    pairs = []

    def clone(layer):
        other = replacement(layer)
        new = type(layer).from_config(layer.get_config()) if other is None else other
        pairs.append((layer, new, other is not None))
        return new

    made = keras.models.clone_model(model, clone_function=clone, recursive=True)
    for old, new, other in pairs:
        if other:
            copy_kernels(old, new)
        elif isinstance(old, keras.Layer):
            # The graph also contains operations, such as sums.
            new.set_weights(old.get_weights())
    return made


def _ours(layer, groups):
    config = layer.get_config()
    allowed = {"attention_axes": (None, (1,)), "sliding_window": (None,), "use_gate": (False,)}
    for name, values in allowed.items():
        if config[name] not in values:
            raise ValueError(
                f"{layer.name} has {name}={config[name]!r}, which MultiHeadAttention does not "
                "support"
            )
    output_shape = config["output_shape"]
    if output_shape is not None and len(output_shape) != 1:
        raise ValueError(f"{layer.name} has output_shape={output_shape}; it must have one axis")
    return MultiHeadAttention(
        groups,
        key_dim=config["key_dim"],
        value_dim=config["value_dim"],
        output_shape=None if output_shape is None else output_shape[0],
        **_shared(config),
    )


def _keras_own(layer):
    config = layer.get_config()
    return keras.layers.MultiHeadAttention(
        layer.num_heads,
        key_dim=layer.query_dense.units // layer.num_heads,
        value_dim=layer.value_dense.units // layer.num_heads,
        output_shape=config["output_shape"],
        **_shared(config),
    )


def _shared(config):
    """Returns the arguments that both layers have."""
    names = ("name", "dtype", "dropout", "use_bias", "kernel_initializer", "bias_initializer")
    names += ("kernel_regularizer", "bias_regularizer", "activity_regularizer", "seed")
    names += ("kernel_constraint", "bias_constraint")
    return {name: config[name] for name in names}
