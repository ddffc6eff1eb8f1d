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


def test_finite_losses_go_on_and_infinite_ones_do_not():
    assert int(fit([1.0, 2.0, 3.0, 4.0]).optimizer.iterations) == 8
    with pytest.raises(FloatingPointError, match="at step 2$"):
        fit([1.0, np.inf, 3.0, 4.0])


def test_with_several_steps_an_execution_its_last_is_named():
    with pytest.raises(FloatingPointError, match="at step 4$"):
        fit([1.0, 2.0, np.nan, 4.0], steps_per_execution=2)
