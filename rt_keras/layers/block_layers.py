"""The layers of blocks that users may replace: the feed-forward network and the normalizations."""

import keras
import tensorflow as tf

from rt_keras.arguments import wrong_value
from rt_keras.keras_internals import takes_mask

NORMALIZATIONS = {
    "layer_norm": keras.layers.LayerNormalization,
    "rms_norm": keras.layers.RMSNormalization,
}
# Options of blocks that concern only the package's layers, with their defaults.
FEED_FORWARD_OPTIONS = {
    "intermediate_dim": None,
    "activation": "geglu",
    "activation_dropout": None,
    "feed_forward_bias": True,
}
NORMALIZATION_OPTIONS = {"layer_norm_epsilon": 1e-6}


class LayerMaker:
    """Makes the layers of an option of blocks, such as `feed_forward`, from what a user gave.

    Args:
        option: string, the name of the option.
        source: a `keras.layers.Layer`, of which each call returns a copy with weights of its own;
            or a function, whose results the calls return.
        or_none: bool, whether the function may return None. Defaults to False.

    Attributes:
        layers: list of the results of all calls.

    Raises:
        ValueError: if `source` is neither, or is a layer with weights; in a call, if the function
            does not return a new layer.

    >>> norms = LayerMaker("normalization", keras.layers.LayerNormalization(epsilon=0.5))
    >>> first, second = norms("first"), norms("second")
    >>> second.name, second.epsilon
    ('second', 0.5)
    """

    def __init__(self, option, source, or_none=False):
        if isinstance(source, keras.layers.Layer):
            if source.built and source.weights:
                raise ValueError(
                    f"{option} must be a layer that is not built: blocks use copies, which have "
                    "weights of their own. A function that returns a new layer may return a built "
                    f"one. Received: {option}={source}"
                )
        elif isinstance(source, type) or not callable(source):
            raise ValueError(
                f"{option} must be a layer or a function that returns one. Received: "
                f"{option}={source!r}"
            )
        self.option = option
        self.source = source
        self.or_none = or_none
        self.layers = []

    def __call__(self, name, *arguments):
        """Makes a layer: a copy of this name, or the result of the function of the arguments."""
        if isinstance(self.source, keras.layers.Layer):
            config = self.source.get_config()
            config |= {"name": name} if "name" in config else {}
            layer = type(self.source).from_config(config)
        else:
            layer = self.source(*arguments)
            self._check(layer)
        if layer is not None:
            # The mask of the input is that of the output. Without this, Keras would warn.
            layer.supports_masking = True
        self.layers.append(layer)
        return layer

    def _check(self, layer):
        if not (isinstance(layer, keras.layers.Layer) or layer is None and self.or_none):
            raise ValueError(
                f"The function {self.option} must return a layer"
                f"{' or None' if self.or_none else ''}. Received: {layer!r}"
            )
        if layer is not None and any(layer is other for other in self.layers):
            raise ValueError(
                f"The function {self.option} must return a new layer in each call. Received the "
                f"same layer twice: {layer}"
            )

    def refuse_unused(self, options, defaults):
        """Raises a ValueError if an option concerns only layers that are all replaced.

        Args:
            options: object with the options as attributes, when all layers have been made.
            defaults: dictionary from the names of such options to their defaults.
        """
        for name, default in defaults.items():
            value = getattr(options, name)
            if value != default and None not in self.layers:
                raise ValueError(
                    f"{name} has no effect on the layers of {self.option}. Received: "
                    f"{name}={value!r} and {self.option}={self.source}"
                )


def feed_forward_maker(feed_forward):
    """Returns the `LayerMaker` of the option `feed_forward`, or None for None."""
    if feed_forward is None or isinstance(feed_forward, LayerMaker):
        return feed_forward
    return LayerMaker("feed_forward", feed_forward, or_none=True)


def normalization_maker(normalization):
    """Returns the `LayerMaker` of the option `normalization`, or one of `NORMALIZATIONS`."""
    if isinstance(normalization, LayerMaker) or normalization in NORMALIZATIONS:
        return normalization
    if isinstance(normalization, str):
        needed = f"one of {tuple(NORMALIZATIONS)}, a layer or a function that returns one"
        raise wrong_value("normalization", needed, normalization)
    return LayerMaker("normalization", normalization)


def make_normalization(normalization, epsilon, dtype, name):
    """Returns a normalization layer, given the result of `normalization_maker`."""
    if isinstance(normalization, LayerMaker):
        return normalization(name)
    return NORMALIZATIONS[normalization](epsilon=epsilon, dtype=dtype, name=name)


def normalized(layer, x):
    """Returns the output of the normalization after the last block, in the dtype of its input.

    Args:
        layer: the layer, which may compute in another dtype; or None, for the input itself.
        x: `[batch, length, width]`.
    """
    if layer is None:
        return x
    output = layer(x)
    return output if output.dtype == x.dtype else keras.ops.cast(output, x.dtype)


def configs_of(layers):
    """Returns the configurations of layers, for `get_config`; None for None."""
    configs = [keras.saving.serialize_keras_object(layer) for layer in layers]
    for config in configs:
        # A block builds its layers, within its own scope of names.
        if config is not None:
            config.pop("build_config", None)
    return configs


def with_layer_makers(config):
    """Deserializes the entries of a block's or a backbone's config that `configs_of` made.

    Returns a config with a function for each list of layers. Each of its calls returns the next.
    """

    def in_turn(configs):
        layers = iter([keras.saving.deserialize_keras_object(config) for config in configs])
        return lambda *_: next(layers)

    lists = {x: config[x] for x in ("feed_forward", "normalization") if isinstance(config[x], list)}
    return {**config, **{name: in_turn(configs) for name, configs in lists.items()}}


def build_replaced(layer, shape, dtype, option):
    """Builds a layer.

    Args:
        layer: the layer.
        shape: shape of the input.
        dtype: dtype of the input.
        option: string, the name of the option in the error message.

    Raises:
        ValueError: if the output has another shape than the input.
    """
    shape = tuple(shape)
    # Unlike `build`, a call also builds layers without this method.
    output = layer(keras.KerasTensor(shape, dtype))
    output_shape = getattr(output, "shape", None)
    if output_shape is None or tuple(output_shape) != shape:
        described = "that is no tensor"
        if output_shape is not None:
            described = f"of shape {tuple(output_shape)}"
        raise ValueError(
            f"{option} must return a tensor of the shape of its input, {shape}. Received: an "
            f"output {described} from {layer}"
        )


def call_replaced(layer, x, mask, training):
    """Calls a layer with `training`, and with the mask if the layer takes one.

    Args:
        layer: the layer.
        x: `[batch, length, width]`.
        mask: bool or int `[batch, length]`, 0 for padding, or None.
        training: bool or None. Keras passes it on to layers inside, even if the layer itself does
            not take it.
    """
    if mask is None or not takes_mask(layer):
        return layer(x, training=training)
    output = layer(x, mask=tf.cast(mask, tf.bool), training=training)
    # Without the mask that Keras attaches to it.
    return tf.identity(output)
