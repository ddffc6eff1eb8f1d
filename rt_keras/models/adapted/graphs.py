"""Replacement of the attention in functional and `Sequential` models."""

import tempfile

import keras
import keras_hub

from rt_keras.keras_internals import SELF_ATTENTION
from rt_keras.layers.layers_inside import layers_inside
from rt_keras.layers.multi_head_attention import MultiHeadAttention
from rt_keras.models.adapted.architectures import Architecture
from rt_keras.models.adapted.attention import new_attention, num_heads, replace_attention
from rt_keras.models.adapted.backbones import chosen_layers, head_group_config, new_head_groups
from rt_keras.models.adapted.weights import copied_values, copy_settings, layer_pairs


class OtherHeads:
    """Mixin of KerasHub's layers: replaces the heads of their self-attention.

    Args:
        head_groups: list of `HeadGroup` or of their configurations. The layer gets its own copy.
        **kwargs: arguments of KerasHub's layer.
    """

    def __init__(self, *, head_groups, **kwargs):
        # A loaded decoder is built by KerasHub's constructor.
        self.head_group_configs = [head_group_config(group) for group in head_groups]
        super().__init__(**kwargs)

    def _replace_heads(self, causal):
        old = getattr(self, SELF_ATTENTION)
        groups = new_head_groups(self.head_group_configs, self.num_heads, self.dtype_policy)
        replace_attention(self, Architecture({}), new_attention(old, groups, causal))

    def get_config(self):
        return {**super().get_config(), "head_groups": list(self.head_group_configs)}


@keras.saving.register_keras_serializable(package="rt_keras")
class AdaptedTransformerEncoder(OtherHeads, keras_hub.layers.TransformerEncoder):
    """`keras_hub.layers.TransformerEncoder` with heads of this package; see `OtherHeads`."""

    def build(self, inputs_shape):
        super().build(inputs_shape)
        self._replace_heads(causal=False)


@keras.saving.register_keras_serializable(package="rt_keras")
class AdaptedTransformerDecoder(OtherHeads, keras_hub.layers.TransformerDecoder):
    """`keras_hub.layers.TransformerDecoder` with heads of this package; see `OtherHeads`.

    Its self-attention is always causal. Its cross-attention stays.
    """

    def build(self, decoder_sequence_shape, encoder_sequence_shape=None):
        super().build(decoder_sequence_shape, encoder_sequence_shape)
        self._replace_heads(causal=True)

    def compute_output_spec(
        self,
        decoder_sequence,
        encoder_sequence=None,
        decoder_padding_mask=None,
        decoder_attention_mask=None,
        encoder_padding_mask=None,
        encoder_attention_mask=None,
        self_attention_cache=None,
        self_attention_cache_update_index=None,
        cross_attention_cache=None,
        cross_attention_cache_update_index=None,
        use_causal_mask=True,
        training=None,
    ):
        # The call of a layer in a graph, before any data.
        for name, value, allowed in (
            ("decoder_attention_mask", decoder_attention_mask, None),
            ("use_causal_mask", use_causal_mask, True),
            ("self_attention_cache", self_attention_cache, None),
            ("cross_attention_cache", cross_attention_cache, None),
        ):
            if value is not allowed:
                raise ValueError(f"{self.name} with other heads takes {name}={allowed} only")
        return super().compute_output_spec(decoder_sequence, encoder_sequence)


# Adapted classes by the class that they adapt.
TRANSFORMER_LAYERS = {
    cls.__bases__[-1]: cls for cls in (AdaptedTransformerEncoder, AdaptedTransformerDecoder)
}
ATTENTION = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)
REPLACED = (*ATTENTION, *TRANSFORMER_LAYERS)


def adapt_graph(model, head_groups, layers=None):
    """Returns a copy of a model with this package's attention instead of Keras's or KerasHub's.

    Args:
        model: a functional or `Sequential` model.
        head_groups, layers: see `rt_keras.adapt`.

    Returns:
        A model with the same graph and weights.

    Raises:
        ValueError: if the graph has no layer of the classes `REPLACED`, or one has options that
            `MultiHeadAttention` does not support.
    """
    attention = dict.fromkeys(layers_inside(model, REPLACED))
    attention = [layer for layer in attention if not isinstance(layer, OtherHeads)]
    numbers = chosen_layers(layers, [None] * len(attention)) if attention else ()
    chosen = {id(attention[number]) for number in numbers}
    configs = [head_group_config(group) for group in head_groups]

    def replacement(layer):
        if id(layer) not in chosen:
            return None
        if type(layer) not in REPLACED:
            raise ValueError(f"{layer.name} would lose the methods of {type(layer).__name__}")
        heads = num_heads(getattr(layer, SELF_ATTENTION, layer))
        groups = new_head_groups(configs, heads, layer.dtype_policy)
        if type(layer) in ATTENTION:
            return _ours(layer, groups)
        return TRANSFORMER_LAYERS[type(layer)](**layer.get_config(), head_groups=configs)

    names = ", ".join(sorted({type(layer).__name__ for layer in model.layers}))
    return _with_replacements(
        model,
        attention,
        replacement,
        f"The model must call a layer of {', '.join(cls.__name__ for cls in REPLACED)} directly, "
        f"not inside another layer. Its layers are: {names}",
    )


def restore_graph(model):
    """Returns a copy of a model with Keras's or KerasHub's attention instead of this package's.

    Args:
        model: a functional or `Sequential` model.

    Returns:
        A model with the same graph and weights, except those of heads.

    Raises:
        ValueError: if `adapt_graph` cannot have made the model, because it does not call
            `rt_keras.layers.MultiHeadAttention` or KerasHub's layers with other heads, or with
            options that Keras's layer lacks.
    """
    ours = (MultiHeadAttention, OtherHeads)
    return _with_replacements(
        model,
        layers_inside(model, ours),
        lambda layer: _original(layer) if isinstance(layer, ours) else None,
        f"{model.name} was not made by adapt(); there is nothing to restore",
    )


def _with_replacements(model, attention, replacement, message):
    """Returns a copy of a model in which other layers with the same weights replace some layers.

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

    made = copy_of(model) if attention and _is_graph(model) else None
    if made is None or any(id(layer) not in copies for layer in attention):
        raise ValueError(message)
    copy_settings(model, made)
    for old, new in copies.values():
        if type(new) is not type(old):
            _copy_weights(old, new)
        # The graph also contains operations, such as sums.
        elif isinstance(old, keras.Layer) and not _is_graph(old):
            _copy_state(old, new)
    if model.compiled:
        # The optimizer is for the weights that are trained now.
        made.compile_from_config(model.get_compile_config())
    return made


def _is_graph(layer):
    # KerasHub's models are graphs too, but of classes of their own.
    if isinstance(layer, (keras_hub.models.Backbone, keras_hub.models.Task)):
        return False
    return isinstance(layer, keras.Sequential) or hasattr(layer, "operations")


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


def _copy_weights(source, target):
    """Copies the weights of a layer to one with other heads."""
    attention = [getattr(layer, SELF_ATTENTION, layer) for layer in (source, target)]
    for weight, value in copied_values(source, target, [attention]):
        weight.assign(value())


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
        if config.get(name, values[0]) not in values:
            raise ValueError(
                f"{layer.name} has {name}={config[name]!r}, which MultiHeadAttention does not "
                "support"
            )
    output_shape = config.get("output_shape")
    if output_shape is not None and len(output_shape) != 1:
        raise ValueError(f"{layer.name} has output_shape={output_shape}; it must have one axis")
    return MultiHeadAttention(
        groups,
        key_dim=config.get("key_dim", config.get("head_dim")),
        value_dim=config.get("value_dim", config.get("head_dim")),
        num_key_value_heads=config.get("num_key_value_heads"),
        output_shape=None if output_shape is None else output_shape[0],
        **_shared(config),
    )


def _original(layer):
    config = layer.get_config()
    if isinstance(layer, OtherHeads):
        del config["head_groups"]
        return type(layer).__bases__[-1](**config)
    grouped, output_shape = config["num_key_value_heads"], config["output_shape"]
    depth = layer.query_dense.units // layer.num_heads
    value_dim = layer.value_dense.units // (grouped or layer.num_heads)
    others = ["use_head_dense", "rotary_embedding", "num_global_tokens", "conv_kernel_size"]
    others += ["num_key_value_heads"] if output_shape or value_dim != depth else []
    for name in others:
        if config[name]:
            raise ValueError(
                f"{layer.name} was not made by adapt(): it has {name}={getattr(layer, name)!r}"
            )
    if grouped:
        return keras.layers.GroupQueryAttention(depth, layer.num_heads, grouped, **_shared(config))
    sizes = {"key_dim": depth, "value_dim": value_dim, "output_shape": output_shape}
    return keras.layers.MultiHeadAttention(layer.num_heads, **sizes, **_shared(config))


def _shared(config):
    """Returns the arguments that both layers have."""
    names = ("name", "dtype", "dropout", "use_bias", "kernel_initializer", "bias_initializer")
    names += ("kernel_regularizer", "bias_regularizer", "activity_regularizer", "seed")
    names += ("kernel_constraint", "bias_constraint")
    return {name: config[name] for name in names}
