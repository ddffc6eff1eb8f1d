"""Lengths that may be known only at run time: ints where they are static, else scalar tensors."""

import tensorflow as tf

from rt_keras.ops.blocks import size


def smaller(a, b):
    """The smaller of two lengths: an int if both are, else a scalar tensor."""
    return tf.minimum(a, b) if tf.is_tensor(a) or tf.is_tensor(b) else min(a, b)


def larger(a, b):
    """The larger of two lengths: an int if both are, else a scalar tensor."""
    return tf.maximum(a, b) if tf.is_tensor(a) or tf.is_tensor(b) else max(a, b)


def of_one_length(query, value, message):
    """Returns queries and values after checking that they have the same length.

    Raises:
        ValueError: with the message, if they do not. If lengths are known only at run time, the
            error is an `InvalidArgumentError`, which XLA does not check.
    """
    lengths = size(query, 2), size(value, 2)
    if any(tf.is_tensor(length) for length in lengths):
        # The check must precede operations that would fail with an unclear message.
        with tf.control_dependencies([tf.debugging.assert_equal(*lengths, message)]):
            return tf.identity(query), tf.identity(value)
    if lengths[0] != lengths[1]:
        raise ValueError(
            f"{message} Received: query of length {lengths[0]}, value of length {lengths[1]}."
        )
    return query, value
