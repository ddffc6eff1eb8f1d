"""Processes that each run one contender whenever they are told to.

A contender is a dictionary of
- `target`: "module:function", the function that makes what is to be run;
- `arguments`: JSON values for it;
- `imports`: modules that it needs beside its own, imported first so that their memory does not
  count; may be left out.

What it makes is a function without arguments, which returns once all is computed.
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
import time

from rt_keras.benchmarks.memory import resident_peak
from rt_keras.benchmarks.timing import alternate


def contest(contenders, repeats, threads, say):
    """Times contenders that take turns, each in a process of its own that stays alive.

    Each makes one run before, which compiles and does not count. One that fails, in that or in a
    later run, is left out.

    Args:
        contenders: dictionary of contenders by name.
        repeats: most runs that a median is of; long ones get fewer.
        threads: that each process may compute with.
        say: function of a name and a line, called with what happens to a contender.

    Returns:
        For each name that could be measured a dictionary of
        - `seconds`: the median;
        - `runs`: list of seconds;
        - `peak_bytes`: the most memory that its process has held, above that of the imports:
          inputs and outputs, what lies between them, compilation, and the start of the framework.
          It is resident memory; that of an accelerator does not count.
    """
    with contextlib.ExitStack() as stack:
        ready, peaks = {}, {}

        def turn(name):
            try:
                answer = ready[name]()
            except RuntimeError as error:
                say(name, f"left out: {error}")
                return None
            peaks[name] = answer["peak_bytes"]
            return answer["seconds"]

        for name, contender in contenders.items():
            ready[name] = stack.enter_context(worker(**contender, threads=threads))
            if turn(name) is None:
                del ready[name]
            else:
                say(name, f"ready, peak {peaks[name] / 1e6:,.0f} MB")
        times = alternate({name: functools.partial(turn, name) for name in ready}, repeats)
    found = {}
    for name, runs in times.items():
        if None not in runs:
            median = statistics.median(runs)
            say(name, f"{median:.4f} s, median of {len(runs)}")
            found[name] = {"seconds": median, "runs": runs, "peak_bytes": peaks[name]}
    return found


@contextlib.contextmanager
def worker(target, arguments, imports=(), threads=None):
    """A process that makes one contender's function, and runs it when told to.

    Args:
        target, arguments, imports: the contender, see the module.
        threads: that it may compute with; by default as many as its libraries choose.

    Yields:
        A function without arguments. It has the process make one run, and returns a dictionary of
        the `seconds` that it took and the `peak_bytes` so far, the most memory that the process has
        held above that of the imports. It raises a RuntimeError if the process fails; where memory
        runs out, the system kills it.
    """
    task = json.dumps({"target": target, "arguments": arguments, "imports": list(imports)})
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
            # A process that is gone is noticed by the answer that does not come.
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
            # What could not be written to it is not tried again when the pipe is closed.
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()


def _reason(status, log):
    """Why a process has ended."""
    if status < 0:
        return f"killed by signal {-status}, perhaps for want of memory"
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"its process ended with status {status}"


def _environment(threads):
    """What the libraries of a contender read when they start."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    if threads is None:
        return quiet
    names = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
    return {**quiet, **dict.fromkeys((*names, "MKL_NUM_THREADS"), str(threads))}


def _main(task):
    task = json.loads(task)
    # Libraries may print: answers keep what was the standard output to themselves.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    module, function = task["target"].split(":")
    for name in (*task["imports"], module):
        importlib.import_module(name)
    before = resident_peak()

    run = getattr(sys.modules[module], function)(**task["arguments"])
    for _ in sys.stdin:
        start = time.perf_counter()
        run()
        seconds = time.perf_counter() - start
        answer = {"seconds": seconds, "peak_bytes": resident_peak() - before}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
