import pytest
import tensorflow as tf

from rt_keras.data.batches import filled_batches, prepared


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


def test_what_is_not_real_weighs_nothing_in_any_shape():
    def prepare(batch):
        return batch, batch["x"], tf.ones([3, 2, 1], tf.bool)

    *_, weights = list(prepared(filled_batches(numbers(5), 3), prepare))[-1]
    assert weights.dtype == tf.float32 and weights.shape == [3, 2, 1]
    assert weights.numpy().tolist() == [[[1], [1]], [[1], [1]], [[0], [0]]]
    *_, weights = next(iter(prepared(numbers(6).batch(3), prepare)))
    assert weights.numpy().tolist() == [[[1], [1]]] * 3


def test_full_batches_and_bad_numbers():
    assert [real.all() for _, real in filled_batches(numbers(4), 2).as_numpy_iterator()] == [1, 1]
    with pytest.raises(ValueError, match="batch_size must be at least 1. Received: batch_size=0"):
        filled_batches(numbers(1), 0)
