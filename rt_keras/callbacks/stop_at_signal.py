"""The signals that end a run after its state is saved."""

import contextlib
import signal
import threading


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


@contextlib.contextmanager
def caught_signals():
    """Catches SIGTERM and Ctrl-C, which `KeepState` looks for after each step.

    A second signal ends the process at once. Outside the main thread, where Python has no signals,
    none is caught.

    Yields:
        A list, which gets the first `signal.Signals`.
    """
    caught, before = [], {}

    def note(number, _):
        caught.append(signal.Signals(number))
        restore()

    def restore():
        for number, handler in before.items():
            signal.signal(number, handler)

    if threading.current_thread() is threading.main_thread():
        before.update({x: signal.signal(x, note) for x in (signal.SIGTERM, signal.SIGINT)})
    try:
        yield caught
    finally:
        restore()
