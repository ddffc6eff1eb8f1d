import os
import signal
import threading

import keras
import numpy as np
import pytest

from rt_keras.callbacks.checkpoints import Checkpoints
from rt_keras.callbacks.keep_state import KeepState
from rt_keras.callbacks.stop_at_signal import StopAtSignal, Stopped

X = np.ones([10, 1], "float32")


def fit(folder, event, batch, number):
    """Trains 2 epochs of 5 steps and gets a signal at an event of a batch."""
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    keep_state = KeepState(Checkpoints(folder), 100)

    def kill(at, logs):
        if at == batch:
            os.kill(os.getpid(), number)

    killer = keras.callbacks.LambdaCallback()
    setattr(killer, event, kill)
    with StopAtSignal(keep_state) as stop:
        fitting = {"validation_data": (X, X), "callbacks": [killer, keep_state, stop]}
        model.fit(X, X, batch_size=2, epochs=2, verbose=0, **fitting)


@pytest.mark.parametrize(
    "event, batch, number, step",
    [
        ("on_train_batch_begin", 1, signal.SIGTERM, 2),
        ("on_train_batch_end", 2, signal.SIGINT, 3),
        ("on_train_batch_end", 4, signal.SIGTERM, 4),
        ("on_test_batch_begin", 0, signal.SIGTERM, 4),
    ],
)
def test_the_step_is_finished_and_kept(tmp_path, event, batch, number, step):
    with pytest.raises(Stopped, match=f"stopped by {number.name} after step {step}; --resume") as e:
        fit(tmp_path, event, batch, number)
    assert e.value.number == number
    assert Checkpoints(tmp_path).newest()[0] == step


def test_a_second_signal_ends_at_once_and_handlers_are_put_back():
    # Ctrl-C as in a terminal; a process that a shell starts in the background ignores it.
    start = signal.signal(signal.SIGINT, signal.default_int_handler)
    before = [signal.getsignal(number) for number in StopAtSignal.signals]
    with pytest.raises(KeyboardInterrupt) as error, StopAtSignal(None):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    assert not isinstance(error.value, Stopped)
    with StopAtSignal(None):
        assert before[0] not in [signal.getsignal(number) for number in StopAtSignal.signals]
    assert [signal.getsignal(number) for number in StopAtSignal.signals] == before
    signal.signal(signal.SIGINT, start)


def test_other_threads_catch_no_signals():
    entered = []

    def enter():
        with StopAtSignal(None):
            entered.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert entered == [before]
