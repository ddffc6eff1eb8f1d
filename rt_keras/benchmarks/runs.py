"""Parts that benchmarks share: processes of measurements, files of figures, options and words."""

import contextlib
import json
import multiprocessing
import os
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from rt_keras.cli.options import add_options
from rt_keras.data import tables
from rt_keras.files import read_json, write_json


def say(text):
    """Prints a line of progress to standard error."""
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def new_process(environment=None):
    """Yields a function that calls functions in one new process with environment variables."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, _set_environment, [environment or {}]) as pool:

        def call(function, *arguments):
            try:
                return pool.submit(function, *arguments).result()
            except BrokenProcessPool:
                message = "its process ended, perhaps because memory ran out"
                raise ChildProcessError(message) from None

        yield call


def _set_environment(variables):
    os.environ.update(variables)


def alone(function, *arguments):
    """Calls a function in a new process, so that the peak memory is that of this call.

    Args:
        function: a function of a module.
        *arguments: its arguments.

    Returns:
        What the function returns.

    Raises:
        ChildProcessError: if the process ends without an answer, as when memory runs out.
        Exception: if the function raises one.
    """
    with new_process() as call:
        return call(function, *arguments)


def attempt(where, function, *arguments):
    """Calls a function in a new process, with progress on standard error.

    Args:
        where: string, name of the measurement.
        function, *arguments: see `alone`.

    Returns:
        What the function returns, or None if memory ran out.
    """
    say(f"measuring {where}")
    try:
        return alone(function, *arguments)
    except (ChildProcessError, MemoryError) as error:
        say(f"{where}: left out: {error}")
        return None


def timed(function, *arguments):
    """Calls a function; returns the seconds that it took, and what it returns."""
    start = time.perf_counter()
    result = function(*arguments)
    return time.perf_counter() - start, result


def figures_of(path, benchmark, wanted, measure, report):
    """Measures the figures of a table, unless a file already has them, and prints the table.

    The file is written after each measurement.

    Args:
        path: string or `Path`, the file, or None for no file.
        benchmark: string, name of the benchmark in the file.
        wanted: list of dictionaries of JSON values, the settings of the measurements.
        measure: function from settings to a dictionary of JSON values, or to None if that failed.
        report: function from the list of the wanted figures to the table.

    Returns:
        A dictionary with all `figures` of the file.

    Raises:
        ValueError: if the file belongs to another benchmark.
        RuntimeError: if there are no figures.
    """
    result = {"benchmark": benchmark, "figures": []}
    if path and Path(path).exists():
        result = read_json(path)
        if result.get("benchmark") != benchmark:
            needed = "--json must be a new file or one from this command"
            raise ValueError(f"{needed}. Received: {path}")
    done = {_identity(figure["settings"]): figure for figure in result["figures"]}
    for settings in wanted:
        if _identity(settings) in done:
            say(f"{settings}: already in {path}")
        elif (figure := measure(settings)) is not None:
            done[_identity(settings)] = figure = {"settings": settings, **figure}
            result["figures"].append(figure)
            if path:
                write_json(path, result)
    figures = [done[x] for x in map(_identity, wanted) if x in done]
    if not figures:
        raise RuntimeError("Nothing was measured: all measurements failed.")
    print(report(figures))
    return result


def _identity(settings):
    return json.dumps(settings, sort_keys=True)


def grouped(figures, setting):
    """Groups figures by a setting, in the order of first appearance."""
    return tables.grouped(figures, lambda figure: figure["settings"][setting])


def mean(values):
    """Returns the mean of values, or None if any of them is None.

    >>> mean([1, 2]), mean([1, None])
    (1.5, None)
    """
    values = list(values)
    return None if None in values else statistics.mean(values)


def spread(values):
    """Returns the standard deviation of values, or None if there is only one."""
    values = list(values)
    return statistics.stdev(values) if len(values) > 1 else None


def machines(figures):
    """Returns a line for each machine that figures are from."""
    return "\n".join(dict.fromkeys(figure["machine"] for figure in figures))


def check_language_model(args):
    """Raises a one-line ValueError if `--model` is not a language model that can be adapted."""
    from rt_keras.models.adapted.folders import attentions_of

    if "decoder" not in attentions_of(args.model):
        raise ValueError(f"--model must be a language model. Received: {args.model}")


def add_names(parser, name, known, default=None):
    """Adds an option, a plural, that selects what to measure; all by default."""
    shown = " ".join(default or ["all"])
    meaning = f"{name} to measure: {', '.join(known)} (default: {shown})"
    default = default or tuple(known)
    add_options(parser, {f"--{name} NAME": meaning}, nargs="+", choices=known, default=default)


def add_seeds(parser):
    """Adds the option for the number of seeds."""
    meaning = "number of runs, with the seeds 0, 1, ... of weights and data (default: 1)"
    add_options(parser, {"--seeds N": meaning}, type=int, default=1)


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
