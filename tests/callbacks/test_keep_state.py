import os
import signal
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.callbacks import CentroidEMA
from rt_keras.callbacks.checkpoints import Checkpoints
from rt_keras.callbacks.keep_state import KeepState
from rt_keras.callbacks.stop_at_signal import Stopped, caught_signals
from rt_keras.layers import LocalRoutingHeads, MultiHeadAttention


class Steps(keras.callbacks.Callback):
    """Records the steps of the checkpoints, and stops at one."""

    def __init__(self, keep_state, stop_at=None):
        super().__init__()
        self.keep_state, self.stop_at, self.values = keep_state, stop_at, {"epochs": 0}

    def on_train_batch_end(self, batch, logs=None):
        if self.keep_state.step == self.stop_at:
            raise KeyboardInterrupt

    def on_epoch_end(self, epoch, logs=None):
        self.values["epochs"] += 1


def make_model(optimizer="adam"):
    """A model whose training draws random numbers at every step."""
    keras.utils.set_random_seed(0)
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        heads = LocalRoutingHeads(2, block_size=2, num_clusters=3, window_size=2)
        inputs = keras.Input([8, 4])
        x = keras.layers.Dropout(0.2)(inputs)
        x = MultiHeadAttention([heads], key_dim=4, dropout=0.1)(x, x, use_causal_mask=True)
        model = keras.Model(inputs, x)
        model.compile(optimizer, "mse", metrics=["mae"])
    return model


def batches(first=0):
    x = np.random.default_rng(0).normal(size=[24, 8, 4]).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, x)).batch(2).repeat().skip(first)


def fit(folder, first_step=0, stop_at=None, epochs=((0, 2, 6),), model=None):
    """Trains 2 epochs of 6 steps; returns the checkpoints and the histories of the parts."""
    model = model or make_model()
    ema = CentroidEMA(restart_after=1)
    checkpoints = Checkpoints(folder, max_to_keep=100)
    counted = Steps(None)
    keep_state = KeepState(checkpoints, 2, callbacks=[ema, counted], first_step=first_step)
    stop, histories = Steps(keep_state, stop_at), []
    counted.keep_state = keep_state
    step = first_step
    for initial_epoch, end, steps in epochs:
        parts = {"initial_epoch": initial_epoch, "epochs": end, "steps_per_epoch": steps}
        callbacks = [ema, counted, keep_state, stop]
        fitted = model.fit(batches(step), verbose=0, callbacks=callbacks, **parts)
        histories.append(fitted.history)
        step += steps
    return checkpoints, histories


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run."""
    return fit(tmp_path_factory.mktemp("whole"))


@pytest.mark.slow
def test_checkpoints_are_written_on_time_before_the_last_step_and_after_it(whole):
    assert whole[0].steps() == [0, 2, 4, 5, 6, 8, 10, 11, 12]


@pytest.mark.slow
@pytest.mark.parametrize(
    "stop_at, kept, epochs", [(9, 8, [(1, 2, 4)]), (6, 5, [(0, 1, 1), (1, 2, 6)])]
)
def test_a_run_that_goes_on_computes_the_same_bits_and_logs_whole_epochs(
    whole, tmp_path, stop_at, kept, epochs
):
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, stop_at=stop_at)
    step, *_ = Checkpoints(tmp_path).newest()
    assert step == kept
    checkpoints, histories = fit(tmp_path, step, epochs=epochs)
    (expected, values), (found, values_found) = (x.read(12) for x in (whole[0], checkpoints))
    assert values == values_found
    assert values == {"callbacks": {"Steps": {"epochs": 2}}, "between_epochs": True}
    assert len(found) > 30
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    # The interrupted epoch has the losses, metrics and cluster use of a complete one.
    for name, values in whole[1][0].items():
        assert [x for history in histories for x in history[name]] == values[-len(epochs) :]


def test_a_checkpoint_of_another_model_is_refused(whole):
    with pytest.raises(ValueError, match="belongs to another model: it differs in .'optimizer_"):
        fit(whole[0].folder, 12, epochs=[(2, 3, 6)], model=make_model("sgd"))


def stop(folder, event, batch, number):
    """Trains 2 epochs of 5 steps and gets a signal at an event of a batch."""
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    killer, x = keras.callbacks.LambdaCallback(), np.ones([10, 1], "float32")
    setattr(killer, event, lambda at, logs: os.kill(os.getpid(), number) if at == batch else None)
    with caught_signals() as signals:
        callbacks = [killer, KeepState(Checkpoints(folder), 100, signals=signals)]
        fitting = {"validation_data": (x, x), "callbacks": callbacks}
        model.fit(x, x, batch_size=2, epochs=2, verbose=0, **fitting)


@pytest.mark.parametrize(
    "event, batch, number, step",
    [
        ("on_train_batch_begin", 1, signal.SIGTERM, 2),
        ("on_train_batch_end", 2, signal.SIGINT, 3),
        ("on_train_batch_end", 4, signal.SIGTERM, 4),
        ("on_test_batch_begin", 0, signal.SIGTERM, 4),
    ],
)
def test_at_a_signal_the_step_is_finished_and_kept(tmp_path, event, batch, number, step):
    with pytest.raises(Stopped, match=f"stopped by {number.name} after step {step}; --resume") as e:
        stop(tmp_path, event, batch, number)
    assert e.value.number == number
    assert Checkpoints(tmp_path).newest()[0] == step


def test_a_second_signal_ends_at_once_and_handlers_are_put_back():
    # Ctrl-C as in a terminal; a process that a shell starts in the background ignores it.
    start = signal.signal(signal.SIGINT, signal.default_int_handler)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), caught_signals() as signals:
        signal.raise_signal(signal.SIGINT)
        assert signals == [signal.SIGINT]
        signal.raise_signal(signal.SIGINT)
    with caught_signals():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
    signal.signal(signal.SIGINT, start)


def test_other_threads_catch_no_signals():
    caught = []

    def enter():
        with caught_signals():
            caught.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert caught == [signal.getsignal(signal.SIGINT)]
