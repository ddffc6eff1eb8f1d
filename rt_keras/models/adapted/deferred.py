"""Variables that are created in a `keras.StatelessScope`, and their values when it ends.

Keras has no public way to change a variable's initial value after its creation. These functions
replace its initializer.
"""

import contextlib

import keras
import tensorflow as tf

from rt_keras.keras_internals import initialize_by, is_initialized


def begin_with(weight, value):
    """Initializes a variable with the result of a function when its scope ends."""
    initialize_by(weight, lambda shape, dtype=None: tf.ensure_shape(tf.cast(value(), dtype), shape))


def leave_empty(weights):
    """Makes unused variables take no memory when their scope ends."""
    for weight in weights:
        if not is_initialized(weight):
            initialize_by(weight, lambda shape, dtype=None: keras.ops.zeros([], dtype))


@contextlib.contextmanager
def empty_on_error(weights):
    """Leaves variables empty if an error ends their scope, which would initialize them."""
    try:
        yield
    except BaseException:
        leave_empty(weights)
        raise
