"""`rt-keras launch`: runs one command with several workers on this machine."""

import argparse
import contextlib
import signal
import socket
import sys

from rt_keras import files, options, supervise
from rt_keras.cli import train

# The exit status of `argparse` for invalid arguments. A restart would not help.
BAD_USAGE = 2


def add_arguments(parser):
    """Adds the command's arguments to an `argparse` parser."""
    parser.description = (
        "Starts workers on this machine, each a process `rt-keras ARGS` with its own TF_CONFIG, "
        "and shows the output of the first one. When a worker fails, all workers end, and the "
        "exit status is that of the failed worker. Ctrl-C and SIGTERM are passed on to the "
        "workers, which save the state of a training before they end; a second signal ends them at "
        "once. A training gets `--set trainer.strategy=multi_worker` if no strategy is set. To use "
        "several GPUs of one machine, run `rt-keras train --set trainer.strategy=mirrored` instead."
    )
    parser.epilog = (
        "example: rt-keras launch --workers 2 -- train --config books --output runs/books --set "
        "data.directory=my/books"
    )
    options.add_options(parser, {"--workers N": "number of workers"}, type=int, required=True)
    meaning = (
        "number of restarts of all workers after one fails; a training resumes from its last "
        "checkpoint, unless it has --overwrite"
    )
    options.add_integers(parser, {"restarts": (0, meaning)})
    meaning = "the command and its arguments, after `--`"
    parser.add_argument("arguments", nargs="+", metavar="ARGS", help=meaning)


def main(args):
    """Runs a command with several workers and reports the one that failed."""
    options.check_at_least_one(args, "workers")
    options.check_range(args, "restarts", 0)
    first = later = args.arguments
    if first[0] == "train":
        first, later = _training(first, args.restarts)
    with supervise.caught_signals() as events:
        for restart in range(args.restarts + 1):
            failure = _run(later if restart else first, args.workers, events)
            if failure is None:
                return {"workers": args.workers, "restarts": restart}
            again = restart < args.restarts and not failure.stopped and failure.status != BAD_USAGE
            _report(failure, f"; restarting all workers, {restart + 1} of {args.restarts}" * again)
            if not again:
                sys.exit(failure.status)


def _report(failure, then):
    """Reports the worker that failed, unless a signal ended it."""
    if failure.stopped and failure.status in (128 + signal.SIGINT, 128 + signal.SIGTERM):
        return
    for line in failure.lines:
        print(f"worker {failure.number}: {line}", file=sys.stderr)
    ended = f"worker {failure.number} ended with status {failure.status}"
    print(f"rt-keras: {ended}{then}", file=sys.stderr, flush=True)


def _training(arguments, restarts):
    """Returns the arguments of a training for its first start and for restarts."""
    parser = argparse.ArgumentParser(prog="rt-keras train")
    train.add_arguments(parser)
    # The workers parse the arguments that all commands share.
    given, _ = parser.parse_known_args(arguments[1:])
    if not any(setting.startswith("trainer.strategy=") for setting in given.set):
        arguments = [*arguments, "--set", "trainer.strategy=multi_worker"]
    if given.resume or given.overwrite:
        return arguments, arguments
    if restarts:
        # A restart must not resume a run that already existed.
        files.check_new_folder(given.output)
    return arguments, [*arguments, "--resume=auto"]


def _run(arguments, count, events):
    """Runs a command with several workers, each with a `TF_CONFIG`; returns their `Failure`."""
    from rt_keras.training.cluster import tf_config

    command = [sys.executable, "-m", "rt_keras", *arguments]
    with free_addresses(count) as addresses:
        environments = [{"TF_CONFIG": tf_config(addresses, index)} for index in range(count)]
        return supervise.run_together([(command, one) for one in environments], events)


@contextlib.contextmanager
def free_addresses(count):
    """Reserves addresses on this machine.

    Args:
        count: int, the number of addresses.

    Yields:
        A list of strings "host:port".
    """
    with contextlib.ExitStack() as stack:
        addresses = []
        for _ in range(count):
            held = stack.enter_context(socket.socket())
            # It does not listen, so servers that reuse addresses, such as TensorFlow's, still can.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(("127.0.0.1", 0))
            addresses.append("127.0.0.1:{1}".format(*held.getsockname()))
        yield addresses
