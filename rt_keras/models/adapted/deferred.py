"""Variables that are made in a `keras.StatelessScope`, and what they begin with when it ends.

Keras has no public way to say that after they are made: these change their initializers.
"""

import contextlib

import keras
import tensorflow as tf

from rt_keras.keras_internals import initialize_by, is_initialized


def begin_with(weight, value):
    """Lets a variable begin with what a function returns, once its scope ends."""
    initialize_by(weight, lambda shape, dtype=None: tf.ensure_shape(tf.cast(value(), dtype), shape))


def leave_empty(weights):
    """Lets variables that nothing will use take no memory once their scope ends."""
    for weight in weights:
        if not is_initialized(weight):
            initialize_by(weight, lambda shape, dtype=None: keras.ops.zeros([], dtype))


@contextlib.contextmanager
def empty_on_error(weights):
    """Leaves variables empty if an error ends their scope, which initializes them even then."""
    try:
        yield
    except BaseException:
        leave_empty(weights)
        raise
