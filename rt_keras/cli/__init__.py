"""The command line `rt-keras`: one module per command.

A module's docstring is the help of its command. It has `add_arguments(parser)` and `main(args)`,
which prints the results and returns them as a dictionary of JSON values. If it has an `error`, the
error is reported after the results are written. Commands import TensorFlow when they run, so that
`--help` is fast.
"""

import argparse
import os
import re
import signal
import sys
import warnings

from rt_keras import __version__, files
from rt_keras.cli.options import add_commands

COMMANDS = (
    "quickstart",
    "configs",
    "train",
    "evaluate",
    "generate",
    "transcribe",
    "export",
    "convert",
    "adapt",
    "index",
    "ask",
    "analyze",
    "benchmark",
)


def main(argv=None):
    """Runs one command.

    Errors are reported as one line on standard error. Set the environment variable
    `RT_KERAS_TRACE` to raise the exception with its stack trace instead.

    Args:
        argv: list of strings, the arguments. Defaults to None, the arguments of the process.

    Returns:
        The exit status: 0; 1 after an error; 130 after an interruption; 143 after SIGTERM ended a
        training and its state was saved; or 141 if the reader of the output closed the pipe.

    Raises:
        SystemExit: with status 2 after invalid arguments.

    >>> main(["configs"])
    name ...
    arxiv_local24k ...
    0
    """
    parser = argparse.ArgumentParser(
        prog="rt-keras",
        description="Trains, adapts, evaluates, samples and exports Routing Transformers.",
        epilog="example: rt-keras quickstart",
    )
    parser.add_argument("--version", action="version", version=f"rt_keras {__version__}")
    words = sys.argv[1:] if argv is None else argv
    # A command imports its own module alone.
    names = [word for word in words[:1] if word in COMMANDS] or COMMANDS
    add_commands(parser, "rt_keras.cli", names)
    args = parser.parse_args(words)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            run(args)
        sys.stdout.flush()
    except KeyboardInterrupt as interruption:
        print(f"rt-keras: {str(interruption) or 'interrupted'}", file=sys.stderr)
        return 128 + getattr(interruption, "number", signal.SIGINT)
    except BrokenPipeError:
        # The reader, such as `head`, closed the pipe. Python would fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        if "RT_KERAS_TRACE" in os.environ:
            raise
        print(f"rt-keras: error: {_message(error)}", file=sys.stderr)
        return 1
    return 0


def run(args):
    """Runs the parsed command and writes its results to the file of `--json`.

    Args:
        args: namespace of the command's arguments. `run` is the command's `main`.
    """
    if args.json:
        files.check_writable("--json", args.json)
    figures = args.run(args)
    # With several workers, the chief writes.
    is_chief = figures.pop("is_chief", True)
    if args.json and is_chief:
        files.write_json(args.json, figures)
        print(f"wrote {args.json}")
    if "error" in figures:
        raise ValueError(figures["error"])


def _show_warning(message, *_, **__):
    """Prints a warning as one line, without the location in the code that Python adds."""
    print(f"rt-keras: warning: {' '.join(str(message).split())}", file=sys.stderr)


def _message(error):
    """Returns the message of an error as one line."""
    line = " ".join(str(error).split())
    # What a layer says is in bold, between the name of its method and all of its arguments.
    keras_message = r"Exception encountered when calling .*?\x1b\[1m(.*?)\x1b\[0m Arguments .*"
    line = re.sub(keras_message, r"\1", line)
    # For unexpected errors, the type is more informative than the message.
    foreseen = isinstance(error, (ValueError, OSError, ArithmeticError, ImportError))
    return line if foreseen else f"{type(error).__name__}: {line}"
