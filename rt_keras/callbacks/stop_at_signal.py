"""Ends a run at a signal, once its state is kept."""

import signal
import threading

import keras


class Stopped(KeyboardInterrupt):
    """A signal has ended the run, whose state was kept.

    Attributes:
        number: the `signal.Signals`.
    """

    def __init__(self, number, step):
        super().__init__(
            f"stopped by {number.name} after step {step:,}; --resume continues from there"
        )
        self.number = number


class StopAtSignal(keras.callbacks.Callback):
    """At SIGTERM or Ctrl-C, finishes the step, keeps the state and raises `Stopped`.

    Of several workers one gets the signal and all stop after the same step. A second signal ends
    the process at once. During validation, the last checkpoint is of the step
    before the last one, and nothing else is kept.

    It is a context manager too, inside which signals are caught. Outside the main thread, where
    Python has no signals, it does nothing.

    Args:
        keep_state: the `KeepState` of the run. Place it before this callback.
    """

    signals = (signal.SIGTERM, signal.SIGINT)

    def __init__(self, keep_state):
        super().__init__()
        self.keep_state = keep_state
        self._before = {}
        self._caught = None

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            self._before = {x: signal.signal(x, self._note) for x in self.signals}
        return self

    def __exit__(self, *_):
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number, _):
        self._caught = signal.Signals(number)
        for one, handler in self._before.items():
            signal.signal(one, handler)

    def on_train_batch_end(self, batch, logs=None):
        if self._is_over():
            if batch + 1 < self.params["steps"]:
                self.keep_state.save()
            self._stop()

    def on_test_batch_end(self, batch, logs=None):
        if self._is_over():
            self._stop()

    def _is_over(self):
        return self.keep_state.workers.any(self._caught is not None)

    def _stop(self):
        self.keep_state.wait()
        raise Stopped(self._caught or signal.SIGTERM, self.keep_state.saved_step)
