"""What batches of whole examples, images or pairs of texts, have in common."""

import tensorflow as tf


def shuffled_batches(examples, batch_size, seed, shuffle_buffer):
    """Batches without end of examples in an order that depends on the seed and the pass alone.

    Args:
        examples: `tf.data.Dataset` of dictionaries.
        batch_size: number of examples in a batch.
        seed: int.
        shuffle_buffer: number of examples among which the next one is drawn; 1 keeps the order.

    Returns:
        `tf.data.Dataset` of dictionaries, with a leading dimension of `batch_size`. A batch may
        hold the end of one pass and the start of the next.

    Raises:
        ValueError: if a number is less than 1, or if there is no example.

    >>> examples = tf.data.Dataset.range(3).map(lambda x: {"x": x})
    >>> for batch in shuffled_batches(examples, 2, seed=0, shuffle_buffer=1).take(3):
    ...     print(batch["x"].numpy())
    [0 1]
    [2 0]
    [1 2]
    """
    check_at_least_one(batch_size=batch_size, shuffle_buffer=shuffle_buffer)
    # Passes over nothing would follow one another for ever without a batch.
    if not any(True for _ in examples.take(1)):
        raise ValueError("there are no examples: there is nothing to train on")

    def one_pass(index):
        return examples.shuffle(shuffle_buffer, seed=seed + index, reshuffle_each_iteration=False)

    return passes(one_pass).batch(batch_size, drop_remainder=True)


def passes(one_pass):
    """The passes of 0, 1, 2 and so on, one after the other without end.

    Args:
        one_pass: function from the number of a pass, a scalar tensor, to its `tf.data.Dataset`.
            Where that shuffles with a seed, TensorFlow's global seed makes no difference.

    Returns:
        `tf.data.Dataset`.
    """

    def with_own_seed(number):
        # That of this function's graph, which would else take the global one, and fail where it
        # is 0.
        tf.compat.v1.set_random_seed(1)
        return one_pass(number)

    return tf.data.Dataset.counter().flat_map(with_own_seed)


def filled_batches(examples, batch_size):
    """Batches in which each example stands once, the last one filled up.

    Args:
        examples: `tf.data.Dataset` of dictionaries.
        batch_size: number of examples in a batch.

    Returns:
        `tf.data.Dataset` of (dictionary, real), with a leading dimension of `batch_size`: what
        fills up is 0, or the empty string, and there `real`, bool `[batch_size]`, is False.

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
    """Raises a ValueError that names a number less than 1."""
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name}={number}: it must be at least 1")
