"""Normalization layers, and residual branches that start at 0."""

import math

import keras

from rt_keras.layers.same_shape import SameShape

NORMALIZATIONS = ("layer_norm", "rms_norm", "scale_norm", "rezero")


def make_normalization(kind, epsilon, dtype, name):
    """Returns the normalization layer for each residual of a block.

    Args:
        kind: one of `NORMALIZATIONS`.
        epsilon: float ε of a normalization.
        dtype: dtype policy.
        name: string.

    Returns:
        `keras.layers.LayerNormalization`, `keras.layers.RMSNormalization`, `ScaleNormalization` or,
        for "rezero", `ResidualWeight`.

    Raises:
        ValueError: if `kind` is unknown.
    """
    if kind not in NORMALIZATIONS:
        raise ValueError(
            f"normalization must be one of {NORMALIZATIONS}. Received: normalization={kind!r}"
        )
    if kind == "rezero":
        return ResidualWeight(dtype=dtype, name=name)
    layers = {
        "layer_norm": keras.layers.LayerNormalization,
        "rms_norm": keras.layers.RMSNormalization,
        "scale_norm": ScaleNormalization,
    }
    return layers[kind](epsilon=epsilon, dtype=dtype, name=name)


@keras.saving.register_keras_serializable(package="rt_keras")
class ScaleNormalization(SameShape):
    """Scales all vectors to the same length, which is learned.

    ```
    output = g x / max(|x|, epsilon)
    ```

    with a single scalar g, initialized with the square root of the width.

    Args:
        epsilon: float. Defaults to 1e-6.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Call arguments:
        inputs: `[..., width]`.

    Returns:
        A tensor of the same shape.

    Source: Nguyen & Salazar 2019, Transformers without Tears, section 3.2.

    >>> ScaleNormalization()(keras.ops.array([[3.0, 4.0]])).numpy().round(3).tolist()
    [[0.8489999771118164, 1.13100004196167]]
    """

    def __init__(self, epsilon=1e-6, **kwargs):
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def build(self, input_shape):
        initializer = keras.initializers.Constant(math.sqrt(input_shape[-1]))
        self.scale = self.add_weight(name="scale", shape=(), initializer=initializer)
        self.built = True

    def call(self, inputs):
        # Squares of half-precision numbers overflow. Keras's normalizations do the same.
        dtype = "float64" if self.compute_dtype == "float64" else "float32"
        x = keras.ops.cast(inputs, dtype)
        squares = keras.ops.sum(keras.ops.square(x), axis=-1, keepdims=True)
        x = x * keras.ops.rsqrt(keras.ops.maximum(squares, self.epsilon**2))
        return keras.ops.cast(x * keras.ops.cast(self.scale, dtype), self.compute_dtype)


@keras.saving.register_keras_serializable(package="rt_keras")
class ResidualWeight(SameShape):
    """Multiplies by a learned scalar, initialized with 0: `output = α x`.

    At the end of each residual branch, it replaces normalization: all blocks are initialized as the
    identity, which does not change gradients.

    Args:
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Call arguments:
        inputs: `[..., width]`.

    Returns:
        A tensor of the same shape.

    Source: Bachlechner et al. 2020, ReZero is All You Need, section 3.

    >>> ResidualWeight()(keras.ops.ones([1, 2])).numpy().tolist()
    [[0.0, 0.0]]
    """

    def build(self, input_shape):
        self.weight = self.add_weight(name="weight", shape=(), initializer="zeros")
        self.built = True

    def call(self, inputs):
        return inputs * keras.ops.cast(self.weight, inputs.dtype)
