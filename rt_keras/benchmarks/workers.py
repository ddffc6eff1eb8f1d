"""Contenders that take turns, each in a process that stays alive."""

import contextlib
import functools
import importlib
import statistics
import sys
from typing import NamedTuple

from rt_keras.benchmarks.machine import resident_peak
from rt_keras.benchmarks.runs import new_process, say, timed

# What the process of a contender keeps: its function, and the peak memory after the imports.
_prepared = []


class Contender(NamedTuple):
    """A function that prepares runs in a separate process.

    Attributes:
        target: string, "module:function". The function prepares a run: it returns a function
            without arguments, which returns once everything is computed.
        arguments: dictionary, the keyword arguments of the target.
        imports: tuple of further modules to import first, so that their memory does not count.
            Defaults to none.
    """

    target: str
    arguments: dict
    imports: tuple = ()


def contest(contenders, repeats, threads, where=""):
    """Times contenders that take turns, each in a separate process that stays alive.

    The first run of each contender compiles and does not count. Contenders that fail are left out.
    Progress is logged to standard error.

    Args:
        contenders: dictionary of each `Contender` by name.
        repeats: int, the maximum number of runs for a median; long runs are repeated less often.
        threads: int, the number of threads of each process.
        where: string, prefix of the lines of the log. Defaults to "".

    Returns:
        A dictionary with, for each contender that did not fail, a dictionary of
        - `seconds`: float, the median;
        - `runs`: list of floats, the seconds of each run;
        - `peak_bytes`: int, the peak resident memory of the process, less that after the imports.
          It includes inputs, outputs, intermediate values, compilation and the start of the
          framework, but not the memory of an accelerator.
    """
    ready, peaks, figures = {}, {}, {}

    def turn(name):
        try:
            seconds, peaks[name] = ready[name](run, contenders[name])
        except Exception as error:  # Each framework has its own if memory runs out.
            say(f"{where}{name}: left out: {' '.join(str(error).split())}")
            return None
        return seconds

    with contextlib.ExitStack() as stack:
        for name in contenders:
            ready[name] = stack.enter_context(new_process(_environment(threads)))
            if turn(name) is None:
                del ready[name]
            else:
                say(f"{where}{name}: ready, peak {peaks[name] / 1e6:,.0f} MB")
        times = alternate({name: functools.partial(turn, name) for name in ready}, repeats)
    for name, runs in times.items():
        if None not in runs:
            median = statistics.median(runs)
            say(f"{where}{name}: {median:.4f} s, median of {len(runs)}")
            figures[name] = {"seconds": median, "runs": runs, "peak_bytes": peaks[name]}
    return figures


def alternate(runs, repeats, seconds=10.0):
    """Runs functions several times each, in rounds, so that other load affects all of them.

    Args:
        runs: dictionary of functions without arguments. Each returns the seconds that it took, or
            None if it failed and should not run again.
        repeats: int, the maximum number of runs of each function.
        seconds: float, the total time after which a function does not run again, since one run of
            full attention over a long sequence is enough. Defaults to 10.0.

    Returns:
        A dictionary from names to lists of the values returned, at least one.

    >>> alternate({"quick": lambda: 1.0, "slow": lambda: 60.0}, repeats=3)
    {'quick': [1.0, 1.0, 1.0], 'slow': [60.0]}
    """
    times = {name: [] for name in runs}
    waiting = list(runs)
    while waiting:
        for name in [*waiting]:
            times[name].append(runs[name]())
            if None in times[name] or len(times[name]) >= repeats or sum(times[name]) >= seconds:
                waiting.remove(name)
    return times


def run(contender):
    """Runs a contender, in its own process, and prepares it before the first run.

    Returns:
        Pair of the seconds that the run took, and the peak memory of the process so far, less that
        after the imports, in bytes.
    """
    if not _prepared:
        module, function = contender.target.split(":")
        for name in (*contender.imports, module):
            importlib.import_module(name)
        before = resident_peak()
        _prepared[:] = getattr(sys.modules[module], function)(**contender.arguments), before
    prepared, before = _prepared
    seconds, _ = timed(prepared)
    return seconds, resident_peak() - before


def _environment(threads):
    """Returns the environment variables for a contender's libraries."""
    libraries = ("TF_NUM_INTRAOP", "TF_NUM_INTEROP", "OMP_NUM", "MKL_NUM")
    counts = {f"{library}_THREADS": str(threads) for library in libraries}
    return {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_FORCE_GPU_ALLOW_GROWTH": "true", **counts}
