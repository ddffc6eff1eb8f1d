"""What the benchmarks of speed share: options, messages, and the origin of figures."""

import os
import sys

import rt_keras
from rt_keras.benchmarks import machine, rivals

# The shape of a model: defaults and meanings.
MODEL = {
    "window": (128, "members of a cluster and block size of local attention"),
    "layers": (2, "number of blocks"),
    "width": (256, "width of the blocks, four times that of a head"),
}


def add_model(parser):
    """Adds the options of `MODEL`."""
    for name, (default, what) in MODEL.items():
        parser.add_argument(
            f"--{name}", type=int, default=default, help=f"{what} (default: {default})"
        )


def check_model(args, lengths):
    """Raises a ValueError if the options of `MODEL` do not make a model for these lengths.

    Args:
        args: namespace of the options.
        lengths: list of ints, the numbers of positions.
    """
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
    """Adds the options of all benchmarks of speed.

    Args:
        parser: `argparse.ArgumentParser`.
        names: the names of the rivals.
    """
    parser.add_argument(
        "--rivals",
        nargs="*",
        metavar="NAME",
        help=f"other packages to measure: {', '.join(names)} (default: those that are installed)",
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=9,
        help="maximum number of runs for a median; long runs are repeated less (default: 9)",
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=machine.cores(),
        help="number of threads of each process (default: all cores)",
    )


def check_at_least_one(args, *names):
    """Raises a ValueError if one of the named options is less than 1.

    Args:
        args: namespace of the options.
        *names: strings, the options, with underscores.
    """
    for name in names:
        value = getattr(args, name)
        if value < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1. Received: {value}")


def check_among(name, values, allowed):
    """Raises a ValueError if one of an option's values is not allowed.

    Args:
        name: string, the option.
        values: list of its values.
        allowed: list of the allowed values.
    """
    for value in values:
        if value not in allowed:
            raise ValueError(f"--{name} must be among {', '.join(allowed)}. Received: {value}")


def say(line):
    """Prints a line on standard error."""
    print(line, file=sys.stderr, flush=True)


def origin(chosen_rivals, load_average):
    """The origin of figures: machine, versions and load.

    Args:
        chosen_rivals: what `rt_keras.benchmarks.rivals.choose` returned.
        load_average: list of one float, the load of the machine before the benchmark.

    Returns:
        A dictionary of JSON values.
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
