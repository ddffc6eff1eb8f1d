"""Embedding of the frames of a sound, before the first block."""

import keras
import tensorflow as tf

from rt_keras.layers.head_group import positive_int
from rt_keras.layers.sinusoidal_positions import SinusoidalPositions
from rt_keras.layers.spec_augment import SpecAugment

# Frames in a position.
SUBSAMPLING = 4


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerSpeechEmbedding(keras.layers.Layer):
    """Embeds frames in the width of the blocks, four frames a position.

    ```
    x = gelu(conv(SpecAugment(features)))       kernel 3, stride 2
    x = gelu(conv(x))                           kernel 3, stride 2
    x = x [+ sines and cosines of the position]
    ```

    A convolution sees the frames around its own.

    Args:
        hidden_dim: int, width of the blocks.
        num_mel_bins: int, number of features of a frame.
        sinusoidal_positions: bool, whether to add `rt_keras.layers.SinusoidalPositions`. Defaults
            to False.
        frequency_masks, frequency_mask_width, time_masks, time_mask_width: see
            `rt_keras.layers.SpecAugment`. By default, there are no masks.
        kernel_initializer: initializer of the convolutions. Defaults to `"glorot_uniform"`.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Call arguments:
        inputs: `[batch, frames, num_mel_bins]`.
        padding_mask: bool or int `[batch, frames]`, 0 for padding. Defaults to None.
        training: bool, whether to mask features.

    Returns:
        `[batch, frames / 4, hidden_dim]`, rounded up.

    Raises:
        ValueError: if a size is not a positive integer.

    Source: Radford et al. 2022, Robust Speech Recognition via Large-Scale Weak Supervision, section
    2.2, with a stride of 2 in both convolutions.

    >>> embedding = RoutingTransformerSpeechEmbedding(hidden_dim=8, num_mel_bins=40)
    >>> embedding(keras.ops.zeros([1, 12, 40])).shape
    TensorShape([1, 3, 8])
    """

    def __init__(
        self,
        hidden_dim,
        num_mel_bins,
        sinusoidal_positions=False,
        frequency_masks=0,
        frequency_mask_width=27,
        time_masks=0,
        time_mask_width=100,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.hidden_dim = positive_int("hidden_dim", hidden_dim)
        self.num_mel_bins = positive_int("num_mel_bins", num_mel_bins)
        self.sinusoidal_positions = sinusoidal_positions
        self.frequency_masks = frequency_masks
        self.frequency_mask_width = frequency_mask_width
        self.time_masks = time_masks
        self.time_mask_width = time_mask_width
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        options = {"dtype": self.dtype_policy}
        self.spec_augment = SpecAugment(
            frequency_masks, frequency_mask_width, time_masks, time_mask_width, **options
        )
        self.convolutions = [
            keras.layers.Conv1D(
                hidden_dim,
                kernel_size=3,
                strides=2,
                kernel_initializer=self.kernel_initializer.clone(),
                name=f"convolution_{number}",
                **options,
            )
            for number in range(2)
        ]
        self.positions = SinusoidalPositions(**options) if sinusoidal_positions else None

    def build(self, input_shape):
        channels = self.num_mel_bins
        for convolution in self.convolutions:
            convolution.build((None, None, channels))
            channels = self.hidden_dim
        self.built = True

    def call(self, inputs, padding_mask=None, training=None):
        x = self.spec_augment(inputs, training=training)
        for convolution in self.convolutions:
            if padding_mask is not None:
                x = x * tf.cast(padding_mask, x.dtype)[:, :, None]
                padding_mask = padding_mask[:, ::2]
            x = keras.activations.gelu(convolution(tf.pad(x, [[0, 0], [1, 1], [0, 0]])))
        return x if self.positions is None else self.positions(x)

    def compute_output_shape(self, inputs_shape, padding_mask_shape=None):
        batch, frames = inputs_shape[:2]
        return batch, None if frames is None else -(-frames // SUBSAMPLING), self.hidden_dim

    @property
    def arguments(self):
        """The arguments of the constructor for `get_config`, which a backbone also has."""
        return {
            "hidden_dim": self.hidden_dim,
            "num_mel_bins": self.num_mel_bins,
            "sinusoidal_positions": self.sinusoidal_positions,
            "frequency_masks": self.frequency_masks,
            "frequency_mask_width": self.frequency_mask_width,
            "time_masks": self.time_masks,
            "time_mask_width": self.time_mask_width,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }

    def get_config(self):
        return {**super().get_config(), **self.arguments}
