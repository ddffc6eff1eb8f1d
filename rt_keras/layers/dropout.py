"""Dropout with different random numbers on each replica."""

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable(package="rt_keras")
class Dropout(keras.layers.Dropout):
    """`keras.layers.Dropout` with different random numbers on each `tf.distribute` replica.

    The random numbers are a function of the layer's seed, the number of previous calls and the
    replica; see `draw_seed`. On a single replica, and on the first of several, they equal those of
    `keras.layers.Dropout`.

    Args:
        rate: float, fraction of the inputs set to 0.
        noise_shape: tuple of ints or None, shape of the dropout mask, broadcast to the inputs. None
            for the shape of the inputs. Defaults to None.
        seed: int or None, seed of the random numbers. Defaults to None.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Call arguments:
        inputs: `[...]`, a tensor of any shape.
        training: bool, whether to set inputs to 0.

    Returns:
        A tensor of the same shape.

    Raises:
        ValueError: if `rate` is not in [0, 1].

    Source: Srivastava et al. 2014, Dropout: A Simple Way to Prevent Neural Networks from
    Overfitting.

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
    """Returns the next seed of a generator, a different one on each replica.

    The states of a generator's copies on several replicas are always equal. Without the number of
    the replica, all replicas would drop the same positions of their examples.

    Args:
        generator: `keras.random.SeedGenerator`.

    Returns:
        int `[2]`, a seed for the `tf.random.stateless_...` functions.

    >>> draw_seed(keras.random.SeedGenerator(5)).numpy().tolist()
    [5, 0]
    """
    seed = generator.next()
    number = tf.cast(replica_number(), seed.dtype)
    # Far apart, since other layers may have nearby seeds.
    return seed + number * tf.constant([1_000_003, 0], seed.dtype)


def replica_number():
    """Returns the number of the current replica among those of all workers, from 0.

    Returns:
        An int or a scalar tensor; 0 outside a replica.

    >>> int(replica_number())
    0
    """
    context = tf.distribute.get_replica_context()
    return 0 if context is None else context.replica_id_in_sync_group
