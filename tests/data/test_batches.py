import numpy as np
import pytest
import tensorflow as tf

from rt_keras.data.batches import check_at_least_one, filled_batches, shuffled_batches


def numbers(count):
    return tf.data.Dataset.range(count).map(lambda x: {"x": x, "name": tf.strings.as_string(x)})


def values(batches):
    return np.concatenate([batch["x"] for batch in batches.as_numpy_iterator()])


def test_a_pass_has_every_example_once():
    passes = values(shuffled_batches(numbers(12), 4, seed=3, shuffle_buffer=5).take(6)).reshape(
        2, 12
    )
    for order in passes:
        assert sorted(order) == list(range(12)) != order.tolist()
    assert (passes[0] != passes[1]).any()


def test_the_seed_fixes_the_order():
    def order(seed):
        return values(shuffled_batches(numbers(12), 5, seed, shuffle_buffer=12).take(5)).tolist()

    assert order(1) == order(1) != order(2)


@pytest.mark.parametrize("global_seed", [0, 1])
def test_the_global_seed_makes_no_difference(global_seed):
    expected = values(shuffled_batches(numbers(12), 4, 2, shuffle_buffer=12).take(6))
    tf.random.set_seed(global_seed)
    found = values(shuffled_batches(numbers(12), 4, 2, shuffle_buffer=12).take(6))
    np.testing.assert_array_equal(found, expected)


def test_no_batch_is_smaller_and_none_is_lost():
    batches = shuffled_batches(numbers(3), 2, seed=0, shuffle_buffer=1)
    assert batches.element_spec["x"].shape == (2,)
    assert values(batches.take(3)).tolist() == [0, 1, 2, 0, 1, 2]
    # More in a batch than in a pass.
    assert values(shuffled_batches(numbers(2), 5, 0, 1).take(1)).tolist() == [0, 1, 0, 1, 0]


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


def test_bad_numbers_and_no_examples():
    check_at_least_one(some=1)
    with pytest.raises(ValueError, match="batch_size must be at least 1. Received: batch_size=0"):
        filled_batches(numbers(1), 0)
    with pytest.raises(ValueError, match="batch_size must be at least 1. Received: batch_size=-1"):
        shuffled_batches(numbers(1), -1, 0, 1)
    with pytest.raises(
        ValueError, match="shuffle_buffer must be at least 1. Received: shuffle_buffer=0"
    ):
        shuffled_batches(numbers(1), 1, 0, 0)
    with pytest.raises(ValueError, match="examples must not be empty"):
        shuffled_batches(numbers(0), 1, 0, 1)
