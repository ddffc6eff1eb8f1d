import pytest
import tensorflow as tf

from rt_keras.data.batches import filled_batches


def numbers(count):
    return tf.data.Dataset.range(count).map(lambda x: {"x": x, "name": tf.strings.as_string(x)})


def test_full_batches_and_bad_numbers():
    assert [real.all() for _, real in filled_batches(numbers(4), 2).as_numpy_iterator()] == [1, 1]
    with pytest.raises(ValueError, match="batch_size must be at least 1. Received: batch_size=0"):
        filled_batches(numbers(1), 0)
