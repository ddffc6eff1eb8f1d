"""Rows that start with padding, moved so that they start with their first token, and back."""

import tensorflow as tf

from rt_keras.ops.blocks import size


def leading_padding(mask):
    """Counts the positions of each row before its first token.

    Args:
        mask: bool or int `[batch, length]`, 0 for padding.

    Returns:
        int32 `[batch]`, 0 for rows without any token.
    """
    # An added position lets rows be empty.
    mask = tf.pad(tf.cast(tf.cast(mask, tf.bool), tf.int32), [[0, 0], [0, 1]])
    return tf.argmax(mask, axis=1, output_type=tf.int32)


def roll_rows(x, shift):
    """Moves the entries of each row to the right, and those beyond its end to its start.

    Args:
        x: `[batch, length, ...]`.
        shift: int `[batch]`, number of positions, negative to move to the left.

    Returns:
        A tensor like `x`. Its gradient is moved back, where TensorFlow's own would scatter.

    >>> roll_rows(tf.constant([[1, 2, 3], [4, 5, 6]]), tf.constant([1, -1])).numpy().tolist()
    [[3, 1, 2], [5, 6, 4]]
    """

    @tf.custom_gradient
    def roll(x):
        places = tf.math.floormod(tf.range(size(x, 1)) - shift[:, None], size(x, 1))
        return tf.gather(x, places, batch_dims=1), lambda upstream: roll_rows(upstream, -shift)

    return roll(tf.convert_to_tensor(x))
