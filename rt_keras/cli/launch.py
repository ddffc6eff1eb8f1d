"""`rt-keras launch`: workers on this machine that run one command together."""

import argparse
import contextlib
import signal
import socket
import sys

from rt_keras import files, options, supervise
from rt_keras.cli import train

# The exit status of `argparse` for wrong arguments, which are no better the next time.
BAD_USAGE = 2


def add_arguments(parser):
    """Adds the command's arguments to an `argparse` parser."""
    parser.description = (
        "Starts workers on this machine, each a process `rt-keras ARGS` with its own TF_CONFIG, "
        "and shows what the first one writes. When one fails, all end, and the exit status is its "
        "own. Ctrl-C and SIGTERM are passed on to the workers, which keep the state of a training "
        "before they end; at the second one they end at once. A training gets "
        "`--set trainer.strategy=multi_worker` if no strategy is named. For several GPUs of one "
        "machine, `rt-keras train --set trainer.strategy=mirrored` needs no workers."
    )
    parser.epilog = (
        "example: rt-keras launch --workers 2 -- train --config books --output runs/books --set "
        "data.directory=my/books"
    )
    options.add_options(parser, {"--workers N": "number of workers"}, type=int, required=True)
    meaning = (
        "how often all are started again after one has failed; a training goes on from its last "
        "checkpoint, unless it has --overwrite"
    )
    options.add_integers(parser, {"restarts": (0, meaning)})
    meaning = "the command and its arguments, after `--`"
    parser.add_argument("arguments", nargs="+", metavar="ARGS", help=meaning)


def main(args):
    """Runs a command by several workers, and says which one failed."""
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
            _report(failure, f"; starting all again, {restart + 1} of {args.restarts}" * again)
            if not again:
                sys.exit(failure.status)


def _report(failure, then):
    """Says which worker failed, unless it ended because it was told to."""
    if failure.stopped and failure.status in (128 + signal.SIGINT, 128 + signal.SIGTERM):
        return
    for line in failure.lines:
        print(f"worker {failure.number}: {line}", file=sys.stderr)
    ended = f"worker {failure.number} ended with status {failure.status}"
    print(f"rt-keras: {ended}{then}", file=sys.stderr, flush=True)


def _training(arguments, restarts):
    """The arguments of a training at its first start and at later ones."""
    parser = argparse.ArgumentParser(prog="rt-keras train")
    train.add_arguments(parser)
    # Those that all commands have are left for the workers to read.
    given, _ = parser.parse_known_args(arguments[1:])
    if not any(setting.startswith("trainer.strategy=") for setting in given.set):
        arguments = [*arguments, "--set", "trainer.strategy=multi_worker"]
    if given.resume or given.overwrite:
        return arguments, arguments
    if restarts:
        # A restart must not go on with a run that was there before.
        files.check_new_folder(given.output)
    return arguments, [*arguments, "--resume=auto"]


def _run(arguments, count, events):
    """Runs a command by several workers, each with a `TF_CONFIG`; returns their `Failure`."""
    from rt_keras.training.cluster import tf_config

    command = [sys.executable, "-m", "rt_keras", *arguments]
    with free_addresses(count) as addresses:
        environments = [{"TF_CONFIG": tf_config(addresses, index)} for index in range(count)]
        return supervise.run_together([(command, one) for one in environments], events)


@contextlib.contextmanager
def free_addresses(count):
    """Addresses on this machine that no other process is given meanwhile.

    Args:
        count: int, their number.

    Yields:
        A list of strings "host:port".
    """
    with contextlib.ExitStack() as stack:
        addresses = []
        for _ in range(count):
            held = stack.enter_context(socket.socket())
            # As it does not listen, servers that reuse addresses, as TensorFlow's do, can.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(("127.0.0.1", 0))
            addresses.append("127.0.0.1:{1}".format(*held.getsockname()))
        yield addresses
