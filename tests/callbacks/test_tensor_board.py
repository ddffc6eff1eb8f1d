import collections

import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.callbacks.measure_speed import MeasureSpeed
from rt_keras.callbacks.tensor_board import TensorBoard


def events(folder):
    """The tensors in a folder of TensorBoard, by their name: dictionaries by step.

    A resumed run has a file of its own, which may begin before the end of the previous one.
    """
    found = collections.defaultdict(dict)
    for path in sorted(folder.glob("events*")):
        steps = set()
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                assert (value.tag, event.step) not in steps, f"{value.tag} twice"
                steps.add((value.tag, event.step))
                found[value.tag][event.step] = tf.make_ndarray(value.tensor)
    return found


def fit(folder, first_step=0, steps_per_execution=1, callbacks=()):
    """Trains for 6 steps per epoch with a learning rate of a tenth of the step."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input([1])
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    rate = keras.optimizers.schedules.PolynomialDecay(0.1, 100, 10.1)
    optimizer = keras.optimizers.SGD(rate)
    optimizer.iterations.assign(first_step)
    model.compile(optimizer, "mse", metrics=["mae"], steps_per_execution=steps_per_execution)
    speed = MeasureSpeed(10, first_step)
    board = TensorBoard(folder, speed, log_every=4)
    data = np.ones([12, 1]), np.zeros([12, 1])
    fitting = {"batch_size": 2, "verbose": 0, "callbacks": [*callbacks, speed, board]}
    return model.fit(*data, epochs=2, validation_data=data, **fitting).history


def test_scalars_are_logged_by_step_and_by_epoch(tmp_path):
    seen = {}
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.setdefault(len(seen) + 1, logs["mae"])
    )
    history = fit(tmp_path, callbacks=[note])
    found = events(tmp_path / "train")
    assert list(found["batch_mae"]) == list(found["batch_loss"]) == [4, 8, 12]
    for step, value in found["batch_mae"].items():
        assert float(value) == pytest.approx(seen[step])
        # The learning rate of the next step, as after an epoch.
        assert float(found["batch_learning_rate"][step]) == pytest.approx(0.1 + step / 10, rel=1e-5)
        assert found["batch_tokens_per_second"][step] > 0
    for name in ("mae", "tokens_per_second"):
        values = [float(value) for value in found[f"epoch_{name}"].values()]
        assert values == pytest.approx(history[name])
    validation = events(tmp_path / "validation")["epoch_mae"]
    assert {step: float(x) for step, x in validation.items()} == pytest.approx(
        dict(enumerate(history["val_mae"]))
    )


def test_steps_go_on_and_executions_have_the_number_of_their_last_step(tmp_path):
    fit(tmp_path, first_step=7, steps_per_execution=3)
    assert list(events(tmp_path / "train")["batch_loss"]) == [10, 13, 16]


def test_what_was_logged_is_written_even_if_the_run_is_killed(tmp_path):
    counts = []

    def note(batch, logs):
        files = (tmp_path / "train").glob("events*")
        counts.append(sum(path.stat().st_size for path in files))

    fit(tmp_path, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_begin=note)])
    grown = [i for i in range(1, 12) if counts[i] > counts[i - 1]]
    # Before the steps after 4, 6 (an epoch) and 8.
    assert grown == [4, 6, 8]
