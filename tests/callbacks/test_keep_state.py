import os
import signal
import threading

import keras
import numpy as np
import pytest

from rt_keras.callbacks.checkpoints import Checkpoints
from rt_keras.callbacks.keep_state import KeepState, Stopped, caught_signals


def fit(folder, optimizer, first_step=0, **options):
    """Trains 2 epochs of 6 steps; returns the checkpoints."""
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    checkpoints, x = Checkpoints(folder, max_to_keep=100), np.ones([12, 1], "float32")
    options |= {"callbacks": [KeepState(checkpoints, 2, first_step=first_step)], "verbose": 0}
    model.fit(x, x, batch_size=2, **options)
    return checkpoints


def test_checkpoints_are_written_on_time_before_the_last_step_and_after_it(tmp_path):
    assert fit(tmp_path, "adam", epochs=2).steps() == [0, 2, 4, 5, 6, 8, 10, 11, 12]
    with pytest.raises(ValueError, match="belongs to another model: it differs in .'optimizer_"):
        fit(tmp_path, "sgd", first_step=12, initial_epoch=2, epochs=3)


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
