"""Batches of whole examples, such as images or pairs of texts."""

import tensorflow as tf


def shuffled_batches(examples, batch_size, seed, shuffle_buffer):
    """Endless batches, in an order that depends only on the seed and the number of the pass.

    Args:
        examples: `tf.data.Dataset` of dictionaries of tensors.
        batch_size: int, number of examples in a batch.
        seed: int.
        shuffle_buffer: int, number of examples that the next one is drawn from; 1 keeps the order.

    Returns:
        `tf.data.Dataset` of dictionaries of tensors `[batch_size, ...]`. A batch may hold the end
        of one pass and the start of the next.

    Raises:
        ValueError: if a number is less than 1, or there are no examples.

    >>> examples = tf.data.Dataset.range(3).map(lambda x: {"x": x})
    >>> for batch in shuffled_batches(examples, 2, seed=0, shuffle_buffer=1).take(3):
    ...     print(batch["x"].numpy())
    [0 1]
    [2 0]
    [1 2]
    """
    check_at_least_one(batch_size=batch_size, shuffle_buffer=shuffle_buffer)
    # Passes over no examples would go on forever without yielding a batch.
    if not any(True for _ in examples.take(1)):
        raise ValueError("examples must not be empty: there is nothing to train on.")

    def one_pass(index):
        return examples.shuffle(shuffle_buffer, seed=seed + index, reshuffle_each_iteration=False)

    return passes(one_pass).batch(batch_size, drop_remainder=True)


def passes(one_pass):
    """Passes 0, 1, 2, ... over a data set, one after the other, without end.

    Args:
        one_pass: function from the number of a pass, a scalar tensor, to its `tf.data.Dataset`. If
            that shuffles with a seed, TensorFlow's global seed makes no difference.

    Returns:
        `tf.data.Dataset`.
    """

    def with_own_seed(number):
        # The seed of this function's graph: otherwise it takes the global one, and fails if that
        # is 0.
        tf.compat.v1.set_random_seed(1)
        return one_pass(number)

    return tf.data.Dataset.counter().flat_map(with_own_seed)


def filled_batches(examples, batch_size):
    """Batches in which each example occurs once, the last one padded.

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

    def fill(batch):
        count = tf.shape(next(iter(batch.values())))[0]
        filled = {name: _fill(values, batch_size - count) for name, values in batch.items()}
        for name, values in filled.items():
            values.set_shape([batch_size, *batch[name].shape[1:]])
        return filled, tf.range(batch_size) < count

    return examples.batch(batch_size).map(fill)


def _fill(values, count):
    rest = tf.concat([[count], tf.shape(values)[1:]], axis=0)
    return tf.concat([values, tf.zeros(rest, values.dtype)], axis=0)


def check_at_least_one(**numbers):
    """Raises a ValueError that names the first number below 1."""
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name} must be at least 1. Received: {name}={number}")
