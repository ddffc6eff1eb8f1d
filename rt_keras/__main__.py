"""The process of `rt-keras`, which is also `python -m rt_keras`."""

import contextlib
import logging
import os
import re
import signal
import sys

from rt_keras.cli import main

# Log lines below fatal of TensorFlow, XLA and CUDA, in their two formats.
LOG_LINE = re.compile(
    rb"[IWE]\d{4} [\d:.]+ +\d+ \S+\]"
    rb"|\d{4}-\d\d-\d\d [\d:.]+: [IWE] "
    rb"|WARNING: All log messages before absl::InitializeLog"
)


def run():
    """Runs the command of this process without the logs of the libraries that it uses.

    With the environment variable `RT_KERAS_TRACE` the logs are kept.
    """
    if "RT_KERAS_TRACE" not in os.environ:
        silence_logs()
    sys.exit(main())


def silence_logs():
    """Keeps the logs of TensorFlow, absl, XLA and CUDA from this process's standard error.

    TensorFlow's own log level does not reach all that its libraries write to file descriptor 2,
    so a child process filters what goes there. Python's `sys.stderr` keeps the original.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # Where it is missing, so is TensorFlow, as `rt-keras doctor` says.
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
    """Copies lines from one file descriptor to another, without those of logs, until the end."""
    # An interruption is for the parent, whose last lines still come.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(source, "rb") as lines:
        for line in lines:
            if not LOG_LINE.match(line):
                os.write(target, line)


if __name__ == "__main__":
    run()
