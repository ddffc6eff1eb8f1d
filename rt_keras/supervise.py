"""Groups of processes: when one fails, all end, and none outlives its parent."""

import contextlib
import ctypes
import dataclasses
import os
import queue
import signal
import subprocess
import sys
import threading
import time

# The bytes to keep of the output of a process that is not shown, and the lines of it to report.
KEPT_BYTES = 2**16
KEPT_LINES = 20
PR_SET_PDEATHSIG = 1


@dataclasses.dataclass(frozen=True)
class Failure:
    """The first failure in a group of processes.

    Attributes:
        number: int, the index of the process that failed first.
        status: int, its exit status in a shell, 128 + n after signal n.
        lines: list of strings, the last lines of its output, if they were not shown.
        stopped: bool, whether a signal to this process ended all processes.
    """

    number: int
    status: int
    lines: list
    stopped: bool


@contextlib.contextmanager
def caught_signals():
    """Catches SIGTERM and SIGINT for `run_together`.

    Use it in the main thread, where Python handles signals.

    Yields:
        The queue of events for `run_together`.
    """
    events = queue.SimpleQueue()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {
        number: signal.signal(number, lambda caught, _: events.put(signal.Signals(caught)))
        for number in numbers
    }
    try:
        yield events
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_together(commands, events, grace=10.0):
    """Runs processes until all have ended.

    The output of the first process is shown; the end of the others' output is kept. When a process
    fails, the others get SIGTERM and, after `grace` seconds, SIGKILL. The first signal to this
    process is passed on to all processes, which may take any time to end. A second signal kills
    them. On Linux, they are also killed when this process ends for any reason.

    Args:
        commands: list of pairs (list of strings, dictionary), the arguments of a process and its
            environment variables.
        events: the queue that `caught_signals` yielded.
        grace: float, seconds. Defaults to 10.0.

    Returns:
        A `Failure`, or None if all processes ended with status 0.

    >>> python = [sys.executable, "-c"]
    >>> sleeper = [*python, "import time; time.sleep(60)"]
    >>> with caught_signals() as events:
    ...     run_together([(sleeper, {}), ([*python, "print('no'); exit(3)"], {})], events)
    Failure(number=1, status=3, lines=['no'], stopped=False)
    """
    processes, tails, first, stopped, deadline = {}, {}, None, None, None
    try:
        for number, (arguments, environment) in enumerate(commands):
            processes[number] = _start(arguments, environment, shown=number == 0)
        for number, process in processes.items():
            tails[number] = _Tail(process.stdout)
            threading.Thread(target=_wait, args=(number, process, events), daemon=True).start()
        running = dict(processes)
        while running:
            event = _next(events, deadline)
            if isinstance(event, signal.Signals) and stopped is None:
                stopped = event
                _send(running, event)
            elif event is None or isinstance(event, signal.Signals):
                _kill(running)
                deadline = None
            else:
                number, status = event
                del running[number]
                if status and first is None:
                    first = event
                    if stopped is None:
                        _send(running, signal.SIGTERM)
                    if stopped is None or status != 128 + stopped:
                        deadline = time.monotonic() + grace
    finally:
        _kill(processes)
        for process in processes.values():
            process.wait()
    if first is None:
        return None
    number, status = first
    return Failure(number, status, tails[number].lines(), stopped is not None)


def _start(arguments, environment, shown):
    """Starts a process whose output is shown, or piped to this process."""
    return subprocess.Popen(
        arguments,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=None if shown else subprocess.PIPE,
        # File descriptor 2 of `rt-keras` itself is not a terminal: see `rt_keras.__main__`.
        stderr=sys.stderr if shown else subprocess.STDOUT,
        # A terminal sends Ctrl-C to all processes of its session. This process passes it on.
        start_new_session=True,
        preexec_fn=_end_with_parent(os.getpid()) if sys.platform == "linux" else None,
    )


def _end_with_parent(parent):
    """Returns a function that makes Linux kill the calling process when its parent ends."""
    prctl = ctypes.CDLL(None).prctl

    def ask():
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return ask


class _Tail:
    """The end of the output in a stream; empty without a stream."""

    def __init__(self, stream):
        self._kept = b""
        self._reader = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._reader.start()

    def _read(self, stream):
        if stream is not None:
            while chunk := stream.read1():
                self._kept = (self._kept + chunk)[-KEPT_BYTES:]

    def lines(self):
        """Returns the last lines. Waits at most 1 s, because a child may keep the stream open."""
        self._reader.join(1)
        return self._kept.decode(errors="replace").splitlines()[-KEPT_LINES:]


def _wait(number, process, events):
    status = process.wait()
    events.put((number, status if status >= 0 else 128 - status))


def _next(events, deadline):
    """Returns the next event, or None at the deadline."""
    left = None if deadline is None else max(0, deadline - time.monotonic())
    try:
        return events.get(timeout=left)
    except queue.Empty:
        return None


def _send(processes, number):
    for process in processes.values():
        process.send_signal(number)


def _kill(processes):
    """Kills the running processes and their children."""
    for process in processes.values():
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
