"""The normalization layers of blocks."""

import keras

from rt_keras.keys import wrong_value
from rt_keras.layers.own_layers import OwnLayers

NORMALIZATIONS = ("layer_norm", "rms_norm")


def own_normalization(given):
    """Returns the option `normalization` of a block: one of `NORMALIZATIONS`, or `OwnLayers`.

    Args:
        given: one of `NORMALIZATIONS`, a layer, a function that returns a layer, or `OwnLayers`.

    Raises:
        ValueError: if it is none of these.
    """
    if isinstance(given, OwnLayers) or given in NORMALIZATIONS:
        return given
    if isinstance(given, str):
        needed = f"one of {NORMALIZATIONS}, a layer or a function that returns one"
        raise wrong_value("normalization", needed, given)
    return OwnLayers("normalization", given)


def make_normalization(kind, epsilon, dtype, name):
    """Returns the normalization layer of a residual, or that after the last block.

    Args:
        kind: one of `NORMALIZATIONS`, or `OwnLayers`.
        epsilon: float ε, except of `OwnLayers`.
        dtype: dtype policy, except of `OwnLayers`.
        name: string.
    """
    if isinstance(kind, OwnLayers):
        return kind(name)
    layers = {
        "layer_norm": keras.layers.LayerNormalization,
        "rms_norm": keras.layers.RMSNormalization,
    }
    return layers[kind](epsilon=epsilon, dtype=dtype, name=name)


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
