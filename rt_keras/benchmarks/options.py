"""What the benchmarks of speed have in common: options, progress, and where figures are from."""

import os
import sys

import rt_keras
from rt_keras.benchmarks import machine, rivals

# The shape of a model, with how many positions its benchmark says.
MODEL = {
    "window": (128, "members of a cluster, block of local attention"),
    "layers": (2, "number of blocks"),
    "width": (256, "of the blocks; a head has a quarter of it"),
}


def add_model(parser):
    """Adds the options of `MODEL`."""
    for name, (default, what) in MODEL.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{what} ({default})")


def check_model(args, lengths):
    """Raises a ValueError where the options of `MODEL` make no model for these lengths."""
    check_at_least_one(args, *MODEL)
    if args.window % 2:
        raise ValueError(f"--window must be even. Received: {args.window}")
    if args.width % 8:
        raise ValueError(f"--width must be a multiple of 8. Received: {args.width}")
    for length in lengths:
        if length < 1 or length % args.window:
            raise ValueError(
                f"positions must be multiples of --window {args.window}: there are length / window "
                f"clusters. Received: {length}"
            )


def add_shared(parser, names):
    """Adds the options that all of them have.

    Args:
        parser: an `argparse` parser.
        names: the rivals that there are.
    """
    parser.add_argument(
        "--rivals",
        nargs="*",
        metavar="NAME",
        help=f"other packages to measure: {', '.join(names)} (those that are installed)",
    )
    parser.add_argument(
        "--repeats", type=int, default=9, help="most runs for a median; long ones get fewer (9)"
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=machine.cores(),
        help="threads that each process may compute with (all cores)",
    )


def check_at_least_one(args, *names):
    """Raises a ValueError where one of the named options is less than 1."""
    for name in names:
        value = getattr(args, name)
        if value < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1. Received: {value}")


def check_among(name, values, allowed):
    """Raises a ValueError where one of an option's values is not allowed."""
    for value in values:
        if value not in allowed:
            raise ValueError(f"--{name} must be among {', '.join(allowed)}. Received: {value}")


def say(line):
    """Tells how far a benchmark is, on the error stream."""
    print(line, file=sys.stderr, flush=True)


def origin(chosen_rivals, load_average):
    """Where figures are from, as JSON values.

    Args:
        chosen_rivals: those of `rt_keras.benchmarks.rivals.choose`.
        load_average: list of the machine's load before the benchmark.
    """
    return {
        "machine": machine.describe(),
        "version": rt_keras.__version__,
        "rivals": rivals.versions(chosen_rivals),
        "load_average": [*load_average, os.getloadavg()[0]],
    }


def speedup_columns(baselines, spec):
    """The columns of a table that compare with baselines.

    >>> list(speedup_columns(["torch_full"], ".1f").values())
    ['.1f']
    """
    return {f"speedup over\n{name.replace('_', ' ')}": spec for name in baselines}
