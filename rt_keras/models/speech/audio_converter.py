"""Log mel filterbanks of sounds."""

import keras
import keras_hub
import tensorflow as tf

from rt_keras.data.wav import SAMPLING_RATE
from rt_keras.layers.head_group import positive_int

# The length of a frame and its distance to the next one, 25 ms and 10 ms, and the length of its
# Fourier transform, in samples.
WINDOW, STRIDE, FFT_LENGTH = 400, 160, 512
# The lowest and highest frequency of the filters, in Hz.
LOWEST, HIGHEST = 20.0, 8000.0
# The smallest energy.
FLOOR = 1e-6


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerAudioConverter(keras_hub.layers.AudioConverter):
    """Converts sounds of 16 kHz to log mel filterbanks.

    ```
    energy_t = |FFT(hann · samples[160 t : 160 t + 400])|²
    features_t = ln(max(mel filters · energy_t, 1e-6))
    ```

    A frame has 25 ms, every 10 ms. The last frames are filled up with zeros, so that a sound of n
    samples has n / 160 frames, rounded up. The features of a sound get mean 0 and variance 1 in
    each bin.

    Args:
        num_mel_bins: int, number of filters. Defaults to 80.
        **kwargs: base layer keyword arguments, such as `name`.

    Call arguments:
        samples: float `[batch, samples]`, from -1 to 1.
        counts: int `[batch]`, number of samples in each row; later ones are padding. Defaults to
            None, for all.

    Returns:
        float32 `[batch, frames, num_mel_bins]`, 0 in padding; and bool `[batch, frames]`, False for
        padding.

    Raises:
        ValueError: if an argument is invalid.

    >>> features, mask = RoutingTransformerAudioConverter(num_mel_bins=40)(tf.zeros([1, 1600]))
    >>> features.shape, mask.shape
    (TensorShape([1, 10, 40]), TensorShape([1, 10]))
    """

    def __init__(self, num_mel_bins=80, **kwargs):
        super().__init__(**kwargs)
        positive_int("num_mel_bins", num_mel_bins)
        self.num_mel_bins = num_mel_bins
        self.built = True

    def call(self, samples, counts=None):
        samples = tf.convert_to_tensor(samples, tf.float32)
        length = tf.shape(samples)[1]
        if counts is None:
            counts = tf.fill(tf.shape(samples)[:1], length)
        frames = -(-length // STRIDE)
        # There is no spectrum of no frames.
        padding = tf.maximum((tf.maximum(frames, 1) - 1) * STRIDE + WINDOW - length, 0)
        features = self._filter(tf.pad(samples, [[0, 0], [0, padding]]))[:, :frames]
        mask = tf.range(frames) < -(-counts[:, None] // STRIDE)  # [batch, frames]
        return self._normalized(features, mask), mask

    def _filter(self, samples):
        """Computes the features of all whole frames, not normalized."""
        # [batch, samples] -> [batch, frames, frequencies] -> [batch, frames, num_mel_bins]
        spectrum = tf.abs(tf.signal.stft(samples, WINDOW, STRIDE, FFT_LENGTH))
        filters = tf.signal.linear_to_mel_weight_matrix(
            self.num_mel_bins, FFT_LENGTH // 2 + 1, SAMPLING_RATE, LOWEST, HIGHEST
        )
        return tf.math.log(tf.maximum(tf.square(spectrum) @ filters, FLOOR))

    def _normalized(self, features, mask):
        real = tf.cast(mask, tf.float32)[:, :, None]
        count = tf.maximum(tf.reduce_sum(real, axis=1, keepdims=True), 1.0)
        mean = tf.reduce_sum(features * real, axis=1, keepdims=True) / count
        centered = (features - mean) * real
        variance = tf.reduce_sum(tf.square(centered), axis=1, keepdims=True) / count
        return centered * tf.math.rsqrt(variance + 1e-5)

    def audio_shape(self):
        return None, self.num_mel_bins

    def get_config(self):
        return {**super().get_config(), "num_mel_bins": self.num_mel_bins}
