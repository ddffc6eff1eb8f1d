"""Embedding of the frames of a sound, before the first block."""

import keras
import tensorflow as tf

from rt_keras.layers import SinusoidalPositions, SpecAugment
from rt_keras.layers.head_group import positive_int
from rt_keras.models.kept_arguments import KeptArguments

# Frames in a position.
SUBSAMPLING = 4


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerSpeechEmbedding(KeptArguments, keras.layers.Layer):
    """Embeds frames in the width of the blocks, four frames a position.

    ```
    x = gelu(conv(SpecAugment(features)))       kernel 3, stride 2
    x = gelu(conv(x))                           kernel 3, stride 2
    x = x [+ sines and cosines of the position]
    ```

    A convolution sees the frames around its own, or, if it is causal, its own and the two before.

    Args:
        hidden_dim: int, width of the blocks.
        num_mel_bins: int, number of features of a frame.
        causal: bool, whether convolutions are causal. Defaults to False.
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
        causal=False,
        sinusoidal_positions=False,
        frequency_masks=0,
        frequency_mask_width=27,
        time_masks=0,
        time_mask_width=100,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        kernel_initializer = keras.initializers.get(kernel_initializer)
        self.keep_arguments(locals())
        positive_int("hidden_dim", hidden_dim)
        positive_int("num_mel_bins", num_mel_bins)
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
        before = (2, 0) if self.causal else (1, 1)
        for convolution in self.convolutions:
            if padding_mask is not None:
                x = x * tf.cast(padding_mask, x.dtype)[:, :, None]
                padding_mask = padding_mask[:, ::2]
            x = keras.activations.gelu(convolution(tf.pad(x, [[0, 0], before, [0, 0]])))
        return x if self.positions is None else self.positions(x)

    def new_state(self, batch):
        """Returns the frames before the first, for `call_with_state`.

        Args:
            batch: int or scalar tensor, batch size.

        Returns:
            A tuple of tensors with the batch on axis 0.
        """
        channels = self.num_mel_bins, self.hidden_dim
        return tuple(tf.zeros([batch, 2, width], self.compute_dtype) for width in channels)

    def call_with_state(self, inputs, state, start):
        """Embeds the next frames, given the state after the previous ones.

        Args:
            inputs: `[batch, frames, num_mel_bins]`, a multiple of 4 frames.
            state: state from `new_state` or the previous call.
            start: int scalar, number of previous positions.

        Returns:
            `[batch, frames / 4, hidden_dim]`, and the state after these frames.

        Raises:
            ValueError: if the layer is not causal.
        """
        if not self.causal:
            raise ValueError("a state needs causal=True, without which frames see later ones")
        x, states = tf.cast(inputs, self.compute_dtype), []
        for convolution, before in zip(self.convolutions, state):
            x = tf.concat([before, x], axis=1)
            states.append(x[:, -2:])
            x = keras.activations.gelu(convolution(x))
        return x if self.positions is None else self.positions(x, start=start), tuple(states)

    def compute_output_shape(self, inputs_shape, padding_mask_shape=None):
        batch, frames = inputs_shape[:2]
        return batch, None if frames is None else -(-frames // SUBSAMPLING), self.hidden_dim
