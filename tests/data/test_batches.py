import pytest
import tensorflow as tf

from rt_keras.data.batches import check_at_least_one, filled_batches


def numbers(count):
    return tf.data.Dataset.range(count).map(lambda x: {"x": x, "name": tf.strings.as_string(x)})


def test_the_last_batch_is_filled_up():
    batches = filled_batches(numbers(5), 3)
    assert batches.element_spec == (
        {"x": tf.TensorSpec([3], tf.int64), "name": tf.TensorSpec([3], tf.string)},
        tf.TensorSpec([3], tf.bool),
    )
    (first, all_real), (second, real) = batches.as_numpy_iterator()
    assert all_real.all() and real.tolist() == [True, True, False]
    assert first["x"].tolist() == [0, 1, 2] and second["x"].tolist() == [3, 4, 0]
    assert second["name"].tolist() == [b"3", b"4", b""]


def test_batches_that_are_full_already():
    assert [real.all() for _, real in filled_batches(numbers(4), 2).as_numpy_iterator()] == [1, 1]
    assert list(filled_batches(numbers(0), 2)) == []


def test_bad_numbers():
    check_at_least_one(some=1)
    with pytest.raises(ValueError, match="batch_size must be at least 1. Received: batch_size=0"):
        filled_batches(numbers(1), 0)
