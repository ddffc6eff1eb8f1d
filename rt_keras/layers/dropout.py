"""Dropout that draws anew on each replica."""

import keras
import tensorflow as tf

from rt_keras.layers.replica_number import replica_number


@keras.saving.register_keras_serializable(package="rt_keras")
class Dropout(keras.layers.Dropout):
    """`keras.layers.Dropout` whose draws differ between the replicas of a `tf.distribute` strategy.

    Each draw is a function of the layer's seed, of the number of draws before it and of the
    replica: see `draw_seed`. On one replica, and on the first of several, it is Keras's.

    Args:
        rate: float, the share of the inputs that are set to 0.
        **kwargs: other arguments of `keras.layers.Dropout`.

    >>> x = keras.ops.ones([2, 4])
    >>> ours, keras_s = Dropout(0.5, seed=1), keras.layers.Dropout(0.5, seed=1)
    >>> bool(keras.ops.all(ours(x, training=True) == keras_s(x, training=True)))
    True
    """

    def call(self, inputs, training=False):
        if not training or not self.rate:
            return inputs
        seed = draw_seed(self.seed_generator)
        return tf.nn.experimental.stateless_dropout(
            inputs, rate=self.rate, seed=seed, noise_shape=self._noise_shape(inputs)
        )

    def _noise_shape(self, inputs):
        if self.noise_shape is None:
            return None
        shape = tf.shape(inputs)
        return [shape[i] if size is None else size for i, size in enumerate(self.noise_shape)]


def draw_seed(generator):
    """The next seed of a generator, another one on each replica.

    The states of a generator's copies on several replicas are equal, and stay so. Without the
    number of the replica all would drop the same positions of their examples.

    Args:
        generator: `keras.random.SeedGenerator`.

    Returns:
        int `[2]`, a seed for the `tf.random.stateless_...` functions.

    >>> draw_seed(keras.random.SeedGenerator(5)).numpy().tolist()
    [5, 0]
    """
    seed = generator.next()
    number = tf.cast(replica_number(), seed.dtype)
    # Far from each other, as other layers have seeds near by.
    return seed + number * tf.constant([1_000_003, 0], seed.dtype)
