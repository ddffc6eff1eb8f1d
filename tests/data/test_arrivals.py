import numpy as np
import pytest
import tensorflow as tf

from rt_keras.data.arrivals import make_arrivals, note_arrivals, seconds_waited


@pytest.mark.parametrize("prefetch", [0, 2])
def test_elements_pass_unchanged_and_their_times_are_noted_in_turn(prefetch):
    x = np.random.default_rng(0).normal(size=[5, 3]).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices(({"x": x}, np.arange(5)))
    arrivals, before = make_arrivals(3), tf.timestamp().numpy()
    noted = note_arrivals(dataset.prefetch(prefetch) if prefetch else dataset, arrivals)
    assert noted.element_spec == dataset.element_spec
    assert int(noted.cardinality()) == 5
    for (inputs, number), wanted in zip(noted.as_numpy_iterator(), range(5), strict=True):
        np.testing.assert_array_equal(inputs["x"], x[wanted])
        assert number == wanted
    # The last three elements remain: 2 at index 2, and 3 and 4 in place of 0 and 1.
    times = arrivals.numpy()
    assert before <= times[2] <= times[0] <= times[1] <= tf.timestamp().numpy()


@pytest.mark.parametrize("seed", range(4))
def test_the_waiting_is_that_of_steps_of_one_length(seed):
    rng = np.random.default_rng(seed)
    # A negative delay: the batch arrived before its step.
    delays, step = rng.uniform(-2, 2, 1 + seed), rng.uniform(0.1, 3)
    arrivals, now = [], 100.0
    for delay in delays:
        arrivals.append(now + delay)
        now = max(now, arrivals[-1]) + step
    wanted = sum(max(delay, 0) for delay in delays)
    np.testing.assert_allclose(seconds_waited(100.0, now, arrivals), wanted, atol=1e-9)
