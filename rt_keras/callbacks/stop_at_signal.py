"""Ends a run at a signal, after saving its state."""

import signal
import threading

import keras


class Stopped(KeyboardInterrupt):
    """Raised when a signal has ended the run. Its state is saved.

    Attributes:
        number: the `signal.Signals`.
    """

    def __init__(self, number, step):
        super().__init__(
            f"stopped by {number.name} after step {step:,}; --resume continues from there"
        )
        self.number = number


class StopAtSignal(keras.callbacks.Callback):
    """Finishes the step at SIGTERM or Ctrl-C, saves the state and raises `Stopped`.

    If one of several workers gets the signal, all stop after the same step. A second signal ends
    the process at once. A signal during validation saves nothing new: the last checkpoint is that
    of the last step but one.

    The callback is also a context manager, which catches signals. Outside the main thread, where
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
