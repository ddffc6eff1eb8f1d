"""Layers that users give to blocks, in place of the package's feed-forward network and norms."""

import inspect

import keras
import tensorflow as tf


class OwnLayers:
    """Makes the layers of an option of blocks, such as `feed_forward`, from what a user gave.

    Args:
        option: string, the name of the option.
        given: a `keras.layers.Layer`, of which each call returns a copy with weights of its own; or
            a function, whose results the calls return.
        or_none: bool, whether the function may return None. Defaults to False.

    Attributes:
        made: list of the results of all calls.

    Raises:
        ValueError: if `given` is neither, or is a layer with weights; in a call, if the function
            does not return a new layer.

    >>> norms = OwnLayers("normalization", keras.layers.LayerNormalization(epsilon=0.5))
    >>> first, second = norms("first"), norms("second")
    >>> second.name, second.epsilon
    ('second', 0.5)
    """

    def __init__(self, option, given, or_none=False):
        if isinstance(given, keras.layers.Layer):
            if given.built and given.weights:
                raise ValueError(
                    f"{option} must be a layer that is not built: blocks use copies, which have "
                    "weights of their own. A function that returns a new layer may return a built "
                    f"one. Received: {option}={given}"
                )
        elif isinstance(given, type) or not callable(given):
            raise ValueError(
                f"{option} must be a layer or a function that returns one. Received: "
                f"{option}={given!r}"
            )
        self.option = option
        self.given = given
        self.or_none = or_none
        self.made = []

    def __call__(self, name, *arguments):
        """Makes a layer.

        Args:
            name: string, the name of a copy.
            *arguments: arguments of a function.
        """
        if isinstance(self.given, keras.layers.Layer):
            config = self.given.get_config()
            config |= {"name": name} if "name" in config else {}
            layer = type(self.given).from_config(config)
        else:
            layer = self.given(*arguments)
            self._check(layer)
        if layer is not None:
            # The mask of the input is that of the output. Without this, Keras would warn.
            layer.supports_masking = True
        self.made.append(layer)
        return layer

    def _check(self, layer):
        if not (isinstance(layer, keras.layers.Layer) or layer is None and self.or_none):
            raise ValueError(
                f"The function {self.option} must return a layer"
                f"{' or None' if self.or_none else ''}. Received: {layer!r}"
            )
        if layer is not None and any(layer is other for other in self.made):
            raise ValueError(
                f"The function {self.option} must return a new layer in each call. Received the "
                f"same layer twice: {layer}"
            )


def own_feed_forward(given):
    """Returns the option `feed_forward` of a block: None or `OwnLayers`."""
    return None if given is None else OwnLayers("feed_forward", given, or_none=True)


def own_config(option):
    """Returns the value of an option for `get_config`, which `with_own_layers` reads.

    Args:
        option: `OwnLayers`, a list of layers, or another value of `feed_forward` or
            `normalization`.

    Returns:
        List of the configurations of all layers, or the value itself.
    """
    layers = option.made if isinstance(option, OwnLayers) else option
    if not isinstance(layers, list):
        return layers
    configs = [keras.saving.serialize_keras_object(layer) for layer in layers]
    for config in configs:
        # A block builds its layers, within its own scope of names.
        if config is not None:
            config.pop("build_config", None)
    return configs


def with_own_layers(config):
    """Deserializes the entries of a block's or a backbone's configuration that are own layers.

    Args:
        config: dictionary from `get_config`.

    Returns:
        A dictionary with a function for each list of layers. Each of its calls returns the next.
    """

    def in_turn(configs):
        layers = iter([keras.saving.deserialize_keras_object(config) for config in configs])
        return lambda *_: next(layers)

    given = {name: config[name] for name in ("feed_forward", "normalization")}
    return {**config, **{k: in_turn(v) for k, v in given.items() if isinstance(v, list)}}


def build_own(layer, shape, dtype, option):
    """Builds a layer, whose output must have the shape of its input.

    Args:
        layer: the layer.
        shape: shape of the input.
        dtype: dtype of the input.
        option: string, the name of the option in the error message.

    Raises:
        ValueError: if the output has another shape.
    """
    shape = tuple(shape)
    # Unlike `build`, a call also builds layers without this method.
    output = layer(keras.KerasTensor(shape, dtype))
    found = getattr(output, "shape", None)
    if found is None or tuple(found) != shape:
        raise ValueError(
            f"{option} must return a tensor of the shape of its input, {shape}. Received: an "
            f"output {'that is no tensor' if found is None else f'of shape {tuple(found)}'} from "
            f"{layer}"
        )


def call_own(layer, x, mask, training):
    """Calls a layer with `training`, and with the mask if the layer takes one.

    Args:
        layer: the layer.
        x: `[batch, length, width]`.
        mask: bool or int `[batch, length]`, 0 for padding, or None.
        training: bool or None. Keras passes it on to layers inside, even if the layer itself does
            not take it.
    """
    if mask is None or "mask" not in inspect.signature(layer.call).parameters:
        return layer(x, training=training)
    output = layer(x, mask=tf.cast(mask, tf.bool), training=training)
    # Without the mask that Keras attaches to it.
    return tf.identity(output)
