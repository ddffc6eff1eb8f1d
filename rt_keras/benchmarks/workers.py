"""Processes that each run one contender on request.

A contender is a dictionary of
- `target`: "module:function", the function that prepares a run;
- `arguments`: dictionary of JSON values, its keyword arguments;
- `imports`: list of further modules to import first, so that their memory does not count.

The target returns a function without arguments, which returns once everything is computed.
"""

import contextlib
import functools
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile

from rt_keras.benchmarks.machine import resident_peak
from rt_keras.benchmarks.runs import say, timed


def contender(place, *imports, **arguments):
    """Returns a contender of this package.

    Args:
        place: string, "module:function" in `rt_keras.benchmarks`, the function that prepares a run.
        *imports: strings, modules to import first.
        **arguments: the function's arguments.

    >>> contender("models:prepare_step", kind="local", length=8)["target"]
    'rt_keras.benchmarks.models:prepare_step'
    """
    target = f"rt_keras.benchmarks.{place}"
    return {"target": target, "arguments": arguments, "imports": imports}


def contest(contenders, repeats, threads, where=""):
    """Times contenders that take turns, each in a separate process that stays alive.

    The first run of each contender compiles and does not count. Contenders that fail are left out.
    Progress is logged to standard error.

    Args:
        contenders: dictionary of contenders by name.
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
    ready, peaks, found = {}, {}, {}

    def turn(name):
        try:
            answer = ready[name]()
        except RuntimeError as error:
            say(f"{where}{name}: left out: {error}")
            return None
        peaks[name] = answer["peak_bytes"]
        return answer["seconds"]

    with contextlib.ExitStack() as stack:
        for name, contender in contenders.items():
            ready[name] = stack.enter_context(worker(threads, **contender))
            if turn(name) is None:
                del ready[name]
            else:
                say(f"{where}{name}: ready, peak {peaks[name] / 1e6:,.0f} MB")
        times = alternate({name: functools.partial(turn, name) for name in ready}, repeats)
    for name, runs in times.items():
        if None not in runs:
            median = statistics.median(runs)
            say(f"{where}{name}: {median:.4f} s, median of {len(runs)}")
            found[name] = {"seconds": median, "runs": runs, "peak_bytes": peaks[name]}
    return found


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
    found = {name: [] for name in runs}
    waiting = dict(runs)
    while waiting:
        for name, run in list(waiting.items()):
            times = found[name]
            times.append(run())
            if times[-1] is None or len(times) >= repeats or sum(times) >= seconds:
                del waiting[name]
    return found


@contextlib.contextmanager
def worker(threads, target, arguments, imports):
    """Starts a process that prepares one contender and runs it on request.

    Args:
        threads: int, the number of threads of the process.
        target, arguments, imports: those of a contender.

    Yields:
        A function without arguments that performs one run in the process. It returns a dictionary
        of `seconds`, the time of the run, and `peak_bytes`, the peak memory of the process so far,
        less that after the imports. It raises a `RuntimeError` if the process fails, for example if
        the system kills it because memory runs out.
    """
    task = json.dumps([target, arguments, imports])
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(
            [sys.executable, "-m", __name__, task],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, **_environment(threads)},
        ) as process,
    ):

        def run():
            # If the process has ended, there is no answer below.
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(b"run\n")
                process.stdin.flush()
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(_reason(process.wait(), log))
            return json.loads(line)

        try:
            yield run
        finally:
            process.kill()
            # Closing would retry the failed write.
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()


def _reason(status, log):
    """Returns the reason why a process ended, in one line."""
    if status < 0:
        return f"killed by signal {-status}, perhaps because memory ran out"
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"the process ended with status {status}"


def _environment(threads):
    """Returns the environment variables for a contender's libraries."""
    libraries = ("TF_NUM_INTRAOP", "TF_NUM_INTEROP", "OMP_NUM", "MKL_NUM")
    counts = {f"{library}_THREADS": str(threads) for library in libraries}
    return {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_FORCE_GPU_ALLOW_GROWTH": "true", **counts}


def _main(task):
    target, arguments, imports = json.loads(task)
    # Libraries may print, so only answers use the original standard output.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    module, function = target.split(":")
    for name in (*imports, module):
        importlib.import_module(name)
    before = resident_peak()

    run = getattr(sys.modules[module], function)(**arguments)
    for _ in sys.stdin:
        seconds, _ = timed(run)
        answer = json.dumps({"seconds": seconds, "peak_bytes": resident_peak() - before})
        print(answer, file=answers, flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
