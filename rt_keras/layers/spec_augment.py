"""Masking of bands and stretches of spectrograms."""

import keras
import tensorflow as tf

from rt_keras.layers.dropout import draw_seed
from rt_keras.layers.head_options import positive_int
from rt_keras.layers.same_shape import SameShape


@keras.saving.register_keras_serializable(package="rt_keras")
class SpecAugment(SameShape):
    """Sets random bands of frequencies and random stretches of frames to 0 in training.

    A mask covers u consecutive bins or frames, u uniform from 0 to its maximum width, at a uniform
    place. Each example has its own masks, which may overlap.

    Args:
        frequency_masks: int, number of bands of frequencies. Defaults to 2.
        frequency_mask_width: int, maximum number of bins in a band. Defaults to 27.
        time_masks: int, number of stretches of frames. Defaults to 2.
        time_mask_width: int, maximum number of frames in a stretch. Defaults to 100.
        seed: int or None, seed of the random numbers. Defaults to None.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Call arguments:
        inputs: `[batch, frames, bins]`.
        training: bool, whether to mask.

    Returns:
        `[batch, frames, bins]`.

    Raises:
        ValueError: if an argument is not an integer of at least 0.

    Source: Park et al. 2019, SpecAugment, section 2, without time warping.

    >>> x = keras.ops.ones([1, 100, 8])
    >>> layer = SpecAugment(frequency_masks=0, time_masks=1, time_mask_width=50, seed=1)
    >>> 50 <= int(keras.ops.sum(layer(x, training=True))) / 8 <= 100
    True
    """

    def __init__(
        self,
        frequency_masks=2,
        frequency_mask_width=27,
        time_masks=2,
        time_mask_width=100,
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.frequency_masks = positive_int("frequency_masks", frequency_masks, least=0)
        self.frequency_mask_width = positive_int(
            "frequency_mask_width", frequency_mask_width, least=0
        )
        self.time_masks = positive_int("time_masks", time_masks, least=0)
        self.time_mask_width = positive_int("time_mask_width", time_mask_width, least=0)
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)
        self.built = True

    def call(self, inputs, training=None):
        if not training:
            return inputs
        seeds = tf.random.split(draw_seed(self.seed_generator), 2)
        batch, frames, bins = (tf.shape(inputs)[axis] for axis in range(3))
        time = _masked(batch, frames, self.time_masks, self.time_mask_width, seeds[0])
        bands = _masked(batch, bins, self.frequency_masks, self.frequency_mask_width, seeds[1])
        # [batch, frames, bins]
        masked = time[:, :, None] | bands[:, None, :]
        return tf.where(masked, tf.zeros_like(inputs), inputs)

    def get_config(self):
        return {
            **super().get_config(),
            "frequency_masks": self.frequency_masks,
            "frequency_mask_width": self.frequency_mask_width,
            "time_masks": self.time_masks,
            "time_mask_width": self.time_mask_width,
            "seed": self.seed,
        }


def _masked(batch, size, count, width, seed):
    """Returns which places random masks cover, bool `[batch, size]`."""
    seeds = tf.random.split(seed, 2)
    shape = [batch, count, 1]
    share = tf.random.stateless_uniform(shape, seeds[0])
    widths = tf.cast(share * tf.cast(width + 1, tf.float32), tf.int32)
    room = tf.maximum(size - widths, 0) + 1
    starts = tf.random.stateless_uniform(shape, seeds[1]) * tf.cast(room, tf.float32)
    starts = tf.cast(starts, tf.int32)
    places = tf.range(size)
    return tf.reduce_any((places >= starts) & (places < starts + widths), axis=1)
