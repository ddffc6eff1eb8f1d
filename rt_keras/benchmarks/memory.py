"""Peak memory of a function, measured in a process of its own."""

import importlib
import json
import os
import resource
import subprocess
import sys
from pathlib import Path


def peak_above_imports(module, arguments):
    """Peak memory of `module.prepare(**arguments)()`, above that of the imports.

    A new process imports the module, notes the most memory that it has held so far, makes the
    call, and notes it again. The difference holds inputs and outputs, what lies between them,
    compilation, and TensorFlow's own start: some 30 MB that even the smallest call needs. It is
    the process's resident memory; what lies in the memory of an accelerator does not count.

    Args:
        module: name of a module with a function `prepare` that returns a function.
        arguments: dictionary of JSON values for `prepare`.

    Returns:
        Bytes.

    Raises:
        RuntimeError: if the process fails; where memory runs out, the system kills it.
    """
    command = [sys.executable, "-m", "rt_keras.benchmarks.memory", module, json.dumps(arguments)]
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
    child = subprocess.run(command, capture_output=True, text=True, env=quiet)
    if child.returncode < 0:
        raise RuntimeError(f"killed by signal {-child.returncode}, perhaps for want of memory")
    if child.returncode:
        raise RuntimeError(child.stderr.strip().splitlines()[-1])
    return int(child.stdout.splitlines()[-1])


def resident_peak():
    """The most memory, in bytes, that this process has held.

    >>> resident_peak() > 10**6
    True
    """
    status = Path("/proc/self/status")
    if status.exists():
        # On Linux the figure of getrusage may be inherited from the process that started this one.
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(fields["VmHWM"].split()[0]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _main(module, arguments):
    prepare = importlib.import_module(module).prepare
    before = resident_peak()
    prepare(**json.loads(arguments))()
    print(resident_peak() - before)


if __name__ == "__main__":
    _main(*sys.argv[1:])
