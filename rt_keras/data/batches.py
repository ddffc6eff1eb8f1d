"""Batches of whole examples, such as images or pairs of texts."""

import tensorflow as tf


def filled_batches(examples, batch_size):
    """Returns batches that contain each example once; the last batch is padded.

    Args:
        examples: `tf.data.Dataset` of dictionaries of tensors.
        batch_size: int, number of examples in a batch.

    Returns:
        `tf.data.Dataset` of (dictionary of tensors `[batch_size, ...]`, bool `[batch_size]`). The
        second is False for padding, which is 0 or the empty string.

    Raises:
        ValueError: if `batch_size` is less than 1.

    >>> examples = tf.data.Dataset.range(3).map(lambda x: {"x": x})
    >>> for batch, real in filled_batches(examples, 2):
    ...     print(batch["x"].numpy(), real.numpy())
    [0 1] [ True  True]
    [2 0] [ True False]
    """
    check_at_least_one(batch_size=batch_size)
    return whole_batches(examples.map(lambda example: (example, True)), batch_size)


def whole_batches(examples, batch_size):
    """Returns batches that contain each example once; the last is padded with 0, "" and False."""
    zeros = tf.nest.map_structure(lambda x: tf.zeros(x.shape, x.dtype), examples.element_spec)
    examples = examples.concatenate(tf.data.Dataset.from_tensors(zeros).repeat(batch_size - 1))
    return examples.batch(batch_size, drop_remainder=True)


def prepared(batches, prepare):
    """Converts batches of examples to the inputs of `fit` and `evaluate`.

    Args:
        batches: `tf.data.Dataset` of batches, or of pairs of a batch and a mask of its real
            examples, as from `filled_batches`.
        prepare: function that maps a batch to inputs, labels and weights, such as a preprocessor.

    Returns:
        `tf.data.Dataset` of inputs, labels and float32 weights, which are 0 for padding examples.

    >>> examples = tf.data.Dataset.from_tensor_slices({"x": [1, 2, 3]})
    >>> batches = filled_batches(examples, 2)
    >>> for _, _, weights in prepared(batches, lambda batch: (batch, batch["x"], [True, True])):
    ...     print(weights.numpy().tolist())
    [1.0, 1.0]
    [1.0, 0.0]
    """

    def weighted(batch, real=None):
        inputs, labels, weights = prepare(batch)
        weights = tf.cast(weights, tf.float32)
        if real is not None:
            shape = [real.shape[0]] + [1] * (weights.shape.rank - 1)
            weights *= tf.reshape(tf.cast(real, tf.float32), shape)
        return inputs, labels, weights

    return batches.map(weighted, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def check_at_least_one(**numbers):
    """Raises a ValueError that names the first that is no whole number from 1 on; not for None."""
    for name, number in numbers.items():
        if number is not None and not (hasattr(number, "__index__") and number >= 1):
            raise ValueError(f"{name} must be at least 1. Received: {name}={number!r}")
