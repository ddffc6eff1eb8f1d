"""The entry point of `rt-keras` and `python -m rt_keras`."""

import contextlib
import gc
import logging
import os
import re
import signal
import sys

from rt_keras.cli import main

# Log lines of TensorFlow, XLA and CUDA below the level "fatal", in their two formats.
LOG_LINE = re.compile(
    rb"[IWE]\d{4} [\d:.]+ +\d+ \S+\]"
    rb"|\d{4}-\d\d-\d\d [\d:.]+: [IWE] "
    rb"|WARNING: All log messages before absl::InitializeLog"
)


def run():
    """Runs the command of this process without the logs of its libraries.

    The environment variable `RT_KERAS_TRACE` keeps the logs.
    """
    if "RT_KERAS_TRACE" not in os.environ:
        silence_logs()
    # Importing TensorFlow makes many objects that stay. Python would search them for garbage every
    # 700 new ones, and again when the process ends, which takes a second.
    gc.set_threshold(100_000, 10, 10)
    status = main()
    gc.disable()
    sys.exit(status)


def silence_logs():
    """Keeps the logs of TensorFlow, absl, XLA and CUDA from this process's standard error.

    TensorFlow's own log level does not apply to everything that its libraries write to file
    descriptor 2, so a child process filters this output. Python's `sys.stderr` keeps the original.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # Without absl, TensorFlow is missing too, which the command reports.
    with contextlib.suppress(ModuleNotFoundError):
        from absl import logging as absl_logging

        absl_logging.set_verbosity(absl_logging.ERROR)
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    original = os.dup(2)
    source, sink = os.pipe()
    if os.fork() == 0:
        os.close(sink)
        filter_lines(source, original)
        os._exit(0)
    os.close(source)
    os.dup2(sink, 2)
    os.close(sink)
    sys.stderr = os.fdopen(original, "w", buffering=1, errors="backslashreplace")


def filter_lines(source, target):
    """Copies lines from one file descriptor to another, except log lines, until the end."""
    # The parent handles interruptions and may still write lines.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(source, "rb") as lines:
        for line in lines:
            if not LOG_LINE.match(line):
                os.write(target, line)


if __name__ == "__main__":
    run()
