"""Replacement of the attention in functional and `Sequential` models."""

import tempfile

import keras
import keras_hub

from rt_keras.layers import MultiHeadAttention
from rt_keras.layers.layers_inside import layers_inside
from rt_keras.models.adapted.attention_layers import copy_kernels
from rt_keras.models.adapted.backbones import chosen_layers, head_group_config, new_head_groups
from rt_keras.models.adapted.settings import copy_settings, layer_pairs


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
    chosen = chosen_layers(layers, [None] * len(found)) if found else ()
    chosen = {id(found[number]) for number in chosen}
    configs = [head_group_config(group) for group in head_groups]

    def replacement(layer):
        if id(layer) not in chosen:
            return None
        return _ours(layer, new_head_groups(configs, layer.num_heads, layer.dtype_policy))

    names = ", ".join(sorted({type(layer).__name__ for layer in model.layers}))
    return _with_replacements(
        model,
        found,
        replacement,
        "The model must call keras.layers.MultiHeadAttention directly, not inside another layer. "
        f"Its layers are: {names}",
    )


def restore_graph(model):
    """Returns a copy of a model with Keras's attention instead of this package's.

    Args:
        model: a functional or `Sequential` model.

    Returns:
        A model with the same graph and weights, except those of heads.

    Raises:
        ValueError: if `adapt_graph` cannot have made the model, because it does not call
            `rt_keras.layers.MultiHeadAttention`, or with options that Keras's layer lacks.
    """
    return _with_replacements(
        model,
        layers_inside(model, MultiHeadAttention),
        lambda layer: _keras_own(layer) if isinstance(layer, MultiHeadAttention) else None,
        f"{model.name} was not made by adapt(); there is nothing to restore",
    )


def _with_replacements(model, attention, replacement, message):
    """Returns a copy of a model in which other layers with the same kernels replace some layers.

    Raises a ValueError with the message unless the graph calls attention, and all of it directly.
    """
    copies = {}

    def copy_of(layer):
        if id(layer) not in copies:
            new = replacement(layer)
            if new is None and _is_graph(layer):
                new = _copied_graph(layer, copy_of)
            elif new is None:
                new = type(layer).from_config(layer.get_config())
            copies[id(layer)] = layer, new
        return copies[id(layer)][1]

    made = copy_of(model) if attention else None
    if not attention or any(id(layer) not in copies for layer in attention):
        raise ValueError(message)
    copy_settings(model, made)
    for old, new in copies.values():
        if type(new) is not type(old):
            copy_kernels(old, new)
        # The graph also contains operations, such as sums.
        elif isinstance(old, keras.Layer) and not _is_graph(old):
            _copy_state(old, new)
    if model.compiled:
        # The optimizer is for the weights that are trained now.
        made.compile_from_config(model.get_compile_config())
    return made


def _is_graph(layer):
    # KerasHub's models are graphs too, but of classes of their own.
    own = isinstance(layer, (keras_hub.models.Backbone, keras_hub.models.Task))
    return not own and (isinstance(layer, keras.Sequential) or hasattr(layer, "operations"))


def _copied_graph(model, copy_of):
    """Returns a model with the graph of another one and copies of its layers."""
    inputs = None
    if not isinstance(model, keras.Sequential):
        layers = {id(x.output): x for x in model.layers if isinstance(x, keras.layers.InputLayer)}
        # Keras's own copies have other names and are not optional.
        inputs = keras.tree.map_structure(
            lambda x: type(layers[id(x)]).from_config(layers[id(x)].get_config()).output,
            model.input,
        )
    made = keras.models.clone_model(model, inputs, copy_of)
    if type(made) is not type(model):
        raise ValueError(
            f"A copy of {model.name} would lose the methods of {type(model).__name__}, whose "
            "constructor takes no inputs and outputs. Pass keras.Model(model.input, model.output)"
        )
    return made


def _copy_state(source, target):
    """Copies the weights of a layer, its vocabularies, and what it computes from them."""
    target.set_weights(source.get_weights())
    for old, new in layer_pairs(source, target):
        if hasattr(old, "save_assets"):
            with tempfile.TemporaryDirectory() as folder:
                old.save_assets(folder)
                new.load_assets(folder)
        if hasattr(new, "finalize_state"):
            new.finalize_state()


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
    others = ("use_head_dense", "num_key_value_heads", "rotary_embedding", "num_global_tokens")
    for name in (*others, "conv_kernel_size"):
        if config[name]:
            raise ValueError(
                f"{layer.name} was not made by adapt(): it has {name}={getattr(layer, name)!r}"
            )
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
