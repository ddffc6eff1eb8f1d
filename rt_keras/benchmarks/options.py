"""What the benchmarks of speed share: options, messages, and the origin of figures."""

import os
import sys
from pathlib import Path

import rt_keras
from rt_keras.benchmarks import machine, rivals
from rt_keras.files import read_json
from rt_keras.options import add_integers, check_range

# The shape of a model: defaults and meanings.
MODEL = {
    "window": (128, "members of a cluster and block size of local attention"),
    "layers": (2, "number of blocks"),
    "width": (256, "width of the blocks, four times that of a head"),
}


def add_kinds(parser, kinds, more=""):
    """Adds the option that says what is measured.

    Args:
        parser: `argparse.ArgumentParser`.
        kinds: tuple of strings, all of them, which is the default.
        more: string, the end of the help. Defaults to "".
    """
    parser.add_argument(
        "--kinds",
        nargs="+",
        default=kinds,
        metavar="KIND",
        help=f"what to measure: {', '.join(kinds)} (default: all){more}",
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
    """Adds the options of all benchmarks of speed that have rivals.

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
    add_repeats_and_threads(parser)


def add_repeats_and_threads(parser):
    """Adds the options that say how figures are taken."""
    add_integers(
        parser,
        {"repeats": (9, "maximum number of runs for a median; long runs are repeated less")},
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=machine.count_cores(),
        help="number of threads of each process (default: all cores)",
    )


def check_at_least_one(args, *names):
    """Raises a ValueError if one of the named options is less than 1.

    Args:
        args: namespace of the options.
        *names: strings, the options, with underscores.
    """
    for name in names:
        check_range(args, name, 1)


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


def contender(place, kind, imports=(), **arguments):
    """A contender of `rt_keras.benchmarks.workers`.

    Args:
        place: string, "module:function" of this package, the function that makes what is run.
        kind: string, the argument of that name.
        imports: tuple of strings, modules to import first. Defaults to ().
        **arguments: the function's other arguments.

    >>> contender("kinds:prepare", "local", length=8)["target"]
    'rt_keras.benchmarks.kinds:prepare'
    """
    return {
        "target": f"rt_keras.benchmarks.{place}",
        "arguments": {"kind": kind, **arguments},
        "imports": imports,
    }


def figures_of(found, chosen_rivals, baselines, **point):
    """The figures of a contest, compared with each other.

    Args:
        found: dictionary of dictionaries by kind, with the `seconds` of each; see
            `rt_keras.benchmarks.workers.contest`.
        chosen_rivals: what `rt_keras.benchmarks.rivals.choose` returned.
        baselines: names of kinds to compare with, beside the rivals.
        **point: what all figures have in common.

    Returns:
        A list of dictionaries.

    >>> figures_of({"local": {"seconds": 2.0}, "full": {"seconds": 4.0}}, {}, ["local"])[1]
    {'kind': 'full', 'package': 'rt_keras', 'seconds': 4.0, 'times_as_fast_as': {'local': 0.5}}
    """
    baselines = [name for name in (*baselines, *chosen_rivals) if name in found]
    return [
        {
            "kind": kind,
            "package": rivals.package(chosen_rivals[kind]) if kind in chosen_rivals else "rt_keras",
            **point,
            **figure,
            "times_as_fast_as": {
                name: found[name]["seconds"] / figure["seconds"] for name in baselines
            },
        }
        for kind, figure in found.items()
    ]


def earlier(path, empty):
    """The result that a file of a benchmark holds, to go on from.

    Args:
        path: string, the file of `--json`, or None.
        empty: dictionary of a result without figures, with the name of its `benchmark`.

    Returns:
        A dictionary; `empty` if there is no file yet.

    Raises:
        ValueError: if the file is of another benchmark.
    """
    if path is None or not Path(path).exists():
        return empty
    result = read_json(path)
    if result.get("benchmark") != empty["benchmark"]:
        raise ValueError(f"--json must be a new file or one of this command. Received: {path}")
    return result
