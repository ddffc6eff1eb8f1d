"""Sinusoidal position embeddings."""

import math

import keras
import tensorflow as tf

from rt_keras.layers.same_shape import SameShape
from rt_keras.ops.blocks import places_of_rows, size


@keras.saving.register_keras_serializable(package="rt_keras")
class SinusoidalPositions(SameShape):
    """Adds sines and cosines of the positions, with frequencies from 1 to 1 / max_wavelength.

    ```
    output_t = x_t + [sin(t f_0), ..., sin(t f_(h-1)), cos(t f_0), ..., cos(t f_(h-1))]
    f_i = max_wavelength^(-i / (h - 1)),    h = width // 2
    ```

    followed by a 0 if the width is odd. Sines precede cosines, as in Tensor2Tensor;
    `keras_hub.layers.SinePositionEncoding` interleaves them.

    Args:
        max_wavelength: number, the longest wavelength divided by 2 π, in positions. Defaults to
            10,000.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Call arguments:
        inputs: `[batch, length, width]`.
        start: int or int scalar tensor, the first position; or int `[batch]`, that of each row.
            Defaults to 0.
        positions: int `[batch, length]`, instead of those from `start`; or None.

    Returns:
        `[batch, length, width]`.

    Source: Vaswani et al. 2017, Attention Is All You Need, section 3.5.

    >>> SinusoidalPositions()(keras.ops.zeros([1, 2, 4])).numpy().round(2).tolist()
    [[[0.0, 0.0, 1.0, 1.0], [0.8399999737739563, 0.0, 0.5400000214576721, 1.0]]]
    """

    def __init__(self, max_wavelength=10_000, **kwargs):
        super().__init__(**kwargs)
        self.max_wavelength = max_wavelength
        self.built = True

    def call(self, inputs, start=0, positions=None):
        width = inputs.shape[-1]
        half = width // 2
        step = -math.log(self.max_wavelength) / max(half - 1, 1)
        if positions is None:
            positions = places_of_rows(start, tf.range(size(inputs, 1)))
        frequencies = tf.exp(tf.range(half, dtype=tf.float32) * step)
        angles = tf.cast(positions, tf.float32)[..., None] * frequencies
        # [batch or 1, length, width]
        signal = tf.concat([tf.sin(angles), tf.cos(angles)], axis=-1)
        signal = tf.pad(signal, [[0, 0], [0, 0], [0, width % 2]])
        return inputs + tf.cast(signal, inputs.dtype)

    def get_config(self):
        return {**super().get_config(), "max_wavelength": self.max_wavelength}
