import math
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.callbacks.measure_speed import MeasureSpeed
from rt_keras.data.arrivals import make_arrivals, note_arrivals

SLEEP = 0.05


def delayed(x, seconds):
    """Returns the tensor after a delay."""

    def sleep(x):
        time.sleep(seconds)
        return x

    return tf.ensure_shape(tf.numpy_function(sleep, [x], x.dtype), x.shape)


def fit(data_seconds=0.0, step_seconds=0.0, steps_per_execution=1, epochs=1):
    """Trains for 8 slow steps per epoch on slow data; returns the logs."""
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        inputs = keras.Input([1])
        x = keras.layers.Lambda(lambda x: delayed(x, step_seconds))(inputs)
        model = keras.Model(inputs, keras.layers.Dense(1)(x))
        model.compile("sgd", "mse", steps_per_execution=steps_per_execution, jit_compile=False)
    data = tf.data.Dataset.from_tensors(np.ones([2, 1], "float32")).repeat()
    data = data.map(lambda x: (delayed(x, data_seconds), x)).prefetch(2)
    arrivals = make_arrivals(16)
    speed = MeasureSpeed(10, first_step=3, arrivals=arrivals)
    fitting = {"epochs": epochs, "steps_per_epoch": 8, "callbacks": [speed], "verbose": 0}
    history = model.fit(note_arrivals(data, arrivals), shuffle=False, **fitting)
    assert speed.step == 3 + 8 * epochs
    return history.history


@pytest.mark.slow
@pytest.mark.parametrize("steps_per_execution", [1, 4])
def test_training_waits_for_slow_data_and_not_for_fast_data(steps_per_execution):
    (slow,) = fit(data_seconds=SLEEP, steps_per_execution=steps_per_execution)["waiting"]
    (fast,) = fit(step_seconds=SLEEP, steps_per_execution=steps_per_execution)["waiting"]
    assert 0 <= fast < slow <= 1
    assert fast < 0.5 < slow


@pytest.mark.slow
def test_the_first_execution_of_a_fit_does_not_count():
    first, second = fit(step_seconds=SLEEP, steps_per_execution=8, epochs=2)["tokens_per_second"]
    assert math.isnan(first)
    # 10 tokens in the time of a step, at most.
    assert 0 < second <= 10 / SLEEP
