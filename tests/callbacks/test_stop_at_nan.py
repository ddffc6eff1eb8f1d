import keras
import numpy as np
import pytest

from rt_keras.callbacks.stop_at_nan import StopAtNaN


def fit(targets, **options):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", **options)
    x, y = np.ones([len(targets), 1]), np.array(targets)[:, None]
    model.fit(x, y, batch_size=1, epochs=2, shuffle=False, verbose=0, callbacks=[StopAtNaN()])
    return model


def test_the_step_is_named_and_finite_losses_go_on():
    assert int(fit([1.0, 2.0, 3.0, 4.0]).optimizer.iterations) == 8
    for bad in (np.nan, np.inf):
        with pytest.raises(FloatingPointError, match="at step 2$"):
            fit([1.0, bad, 3.0, 4.0])


def test_with_several_steps_an_execution_its_last_is_named():
    with pytest.raises(FloatingPointError, match="at step 4$"):
        fit([1.0, 2.0, np.nan, 4.0], steps_per_execution=2)
