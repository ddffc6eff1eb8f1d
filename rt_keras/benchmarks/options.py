"""Options, results and table columns that the benchmarks share."""

import os
from pathlib import Path

import rt_keras
from rt_keras.benchmarks import machine, rivals
from rt_keras.files import read_json
from rt_keras.options import add_integers, add_options, check_at_least_one

# The shape of a model: defaults and meanings.
MODEL = {
    "window": (128, "cluster size and block size of local attention"),
    "layers": (2, "number of blocks"),
    "width": (256, "width of the blocks, four times that of a head"),
}


def add_names(parser, name, known, default=None, more=""):
    """Adds an option that selects the kinds or tasks to measure.

    Args:
        parser: `argparse.ArgumentParser`.
        name: string, the option.
        known: tuple of strings, or dictionary with such keys, all available names.
        default: list of strings. Defaults to None, for all names.
        more: string to append to the help. Defaults to "".
    """
    shown = " ".join(default or ["all"])
    meaning = f"{name} to measure: {', '.join(known)} (default: {shown}){more}"
    default = default or tuple(known)
    add_options(parser, {f"--{name} NAME": meaning}, nargs="+", choices=known, default=default)


def add_numbers(parser, name, default, meaning):
    """Adds an option that takes a list of integers.

    Args:
        parser: `argparse.ArgumentParser`.
        name: string, the option.
        default: tuple of ints.
        meaning: string, the help.
    """
    meaning = f"{meaning} (default: {' '.join(map(str, default)) or 'none'})"
    add_options(parser, {f"--{name} N": meaning}, type=int, nargs="+", default=default)


def add_shared(parser, names):
    """Adds the options that all speed benchmarks with rivals share.

    Args:
        parser: `argparse.ArgumentParser`.
        names: dictionary whose keys are the names of the rivals.
    """
    meaning = f"other packages to measure: {', '.join(names)} (default: all that are installed)"
    add_options(parser, {"--rivals NAME": meaning}, nargs="*", choices=names)
    add_repeats_and_threads(parser)


def add_repeats_and_threads(parser):
    """Adds the options for repeats and threads."""
    meaning = "maximum number of runs for a median; long runs are repeated less often"
    add_integers(parser, {"repeats": (9, meaning)})
    meaning = "number of threads per process (default: all cores)"
    add_options(parser, {"--threads N": meaning}, type=int, default=machine.count_cores())


def add_learning_rate(parser, default):
    """Adds the option for the peak learning rate."""
    meaning = f"peak learning rate (default: {default:g})"
    add_options(parser, {"--learning-rate": meaning}, type=float, default=default)


def add_directory(parser, what):
    """Adds the option for a folder of texts that some tasks read."""
    meaning = f"folder of texts for {what} (default: the source of Python's standard library)"
    add_options(parser, {"--directory DIR": meaning})


def check_model(args, lengths):
    """Raises a `ValueError` if the options of `MODEL` do not define a model for these lengths.

    Args:
        args: namespace of the options.
        lengths: list of ints, the numbers of positions.
    """
    check_at_least_one(args, *MODEL)
    if args.window % 2:
        raise ValueError(f"--window must be even. Received: {args.window}")
    check_multiple(args, "width", 8)
    for length in lengths:
        if length < 1 or length % args.window:
            raise ValueError(
                f"lengths must be positive multiples of --window {args.window}: there are length / "
                f"window clusters. Received: {length}"
            )


def check_multiple(args, name, number, what=""):
    """Raises a `ValueError` if an option is not a positive multiple of a number.

    Args:
        args: namespace of the options.
        name: string, the option.
        number: int.
        what: string to print before the number. Defaults to "".
    """
    value = getattr(args, name)
    if value < 1 or value % number:
        raise ValueError(f"--{name} must be a multiple of {what}{number}. Received: {value}")


def check_learning_rate(args):
    """Raises a `ValueError` if the learning rate is not above 0."""
    if not args.learning_rate > 0:
        raise ValueError(f"--learning-rate must be above 0. Received: {args.learning_rate}")


def figures_of(found, chosen_rivals, baselines=(), **point):
    """Compares the figures of a contest with the baselines.

    Args:
        found: dictionary of dictionaries by kind, with the `seconds` of each; see
            `rt_keras.benchmarks.workers.contest`.
        chosen_rivals: dictionary from `rt_keras.benchmarks.rivals.choose`.
        baselines: names of kinds to compare with, in addition to the rivals. Defaults to none.
        **point: entries that all figures share.

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


def result(args, figures, load, chosen_rivals, settings, **more):
    """Returns the result of a speed benchmark: its figures and their origin.

    Args:
        args: namespace of the options.
        figures: list of dictionaries from `figures_of`.
        load: float, the load average of the machine before the benchmark.
        chosen_rivals: dictionary from `rt_keras.benchmarks.rivals.choose`.
        settings: dictionary of JSON values, in addition to the options of all speed benchmarks.
        **more: further JSON values to return, such as the name of the `benchmark`.

    Returns:
        A dictionary of JSON values.

    Raises:
        RuntimeError: if there are no figures.
    """
    if not figures:
        raise RuntimeError("Nothing was measured: every contender failed.")
    return {
        **more,
        "machine": machine.describe(),
        "version": rt_keras.__version__,
        "rivals": rivals.versions(chosen_rivals),
        "load_average": [load, os.getloadavg()[0]],
        "settings": {**settings, "threads": args.threads, "repeats": args.repeats},
        "figures": figures,
    }


def earlier(path, empty):
    """Loads the result of a benchmark from a file, to resume from.

    Args:
        path: string, the file of `--json`, or None.
        empty: dictionary, a result without figures, with the name of its `benchmark`.

    Returns:
        A dictionary; `empty` if the file does not exist.

    Raises:
        ValueError: if the file belongs to another benchmark.
    """
    if path is None or not Path(path).exists():
        return empty
    result = read_json(path)
    if result.get("benchmark") != empty["benchmark"]:
        raise ValueError(f"--json must be a new file or one from this command. Received: {path}")
    return result


def values(args, names):
    """Returns the values of some options as a dictionary.

    >>> import argparse
    >>> values(argparse.Namespace(length=8, batch=2), ["batch"])
    {'batch': 2}
    """
    return {name: getattr(args, name) for name in names}


def words(name):
    """Replaces underscores in a name by spaces.

    >>> words("local_routing")
    'local routing'
    """
    return name.replace("_", " ")


def shape(result):
    """Describes the shape of the models of a result."""
    return "{layers} layers of width {width}, 4 heads, window {window}".format(**result["settings"])


# Columns of tables of figures: see `rt_keras.tables.table_of`.
KIND = {"kind": ("", lambda figure: words(figure["kind"]))}
PEAK = {"peak (MB)": (",.0f", lambda figure: figure["peak_bytes"] / 1e6)}


def speedups(figures, spec):
    """Returns the columns that compare figures with baselines.

    Args:
        figures: list of dictionaries from `figures_of`.
        spec: string, the format of a number.

    Returns:
        A dictionary for `rt_keras.tables.table_of`.

    >>> list(speedups([{"times_as_fast_as": {"torch_full": 2.0}}], ".1f"))
    ['speedup over\\ntorch full']
    """
    names = dict.fromkeys(name for figure in figures for name in figure["times_as_fast_as"])
    return {
        f"speedup over\n{words(name)}": (spec, lambda f, name=name: f["times_as_fast_as"].get(name))
        for name in names
    }
