"""Code in processes of its own: on two replicas, and with the memory that XLA plans."""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]

# XLA compiles in half the time without LLVM's optimizations and without splitting the code. Values
# stay within the tests' tolerances, and the memory that XLA plans is the same.
COMPILE_FAST = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"


def printed(script, *arguments, **variables):
    """Runs Python in a separate process, with variables of its environment; returns its output."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, **variables}
    run = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=1200, env=environment
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout


@contextlib.contextmanager
def dumped(script, *arguments):
    """Yields the folder, a script's first argument, of what XLA compiles for it; and the output."""
    with tempfile.TemporaryDirectory() as folder:
        flags = f"{COMPILE_FAST} --xla_dump_to={folder} --xla_dump_hlo_as_text"
        yield Path(folder), printed(script, folder, *arguments, XLA_FLAGS=flags)


def temporaries(script):
    """Bytes that XLA sets aside, between arguments and results, for the functions that it compiles.

    The figure is XLA's own, and the same in every run.

    Args:
        script: Python that calls functions of `tf.function(jit_compile=True)`, each with another
            name; it runs in a separate process.

    Returns:
        A dictionary of bytes by the functions' names.
    """
    with dumped(script) as (folder, _):
        return dict(map(_read, folder.glob("*_inference_*buffer-assignment.txt")))


def _read(path):
    sizes = re.findall(r"^allocation \d+: size (\d+), preallocated-temp", path.read_text(), re.M)
    return re.search("_inference_(.*?)_[0-9]+__Xla", path.name)[1], sum(map(int, sizes))


START = """
import json
import tensorflow as tf
from tests.conftest import trace_fast
trace_fast()
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy, found = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]), {}
"""


def found_on_two_replicas(code):
    """Runs code in a separate process, since TensorFlow counts devices once.

    Args:
        code: string. It uses `tf` and `strategy`, and puts JSON values in the dictionary `found`.

    Returns:
        The dictionary `found`.
    """
    return json.loads(printed(f"{START}{code}\nprint(json.dumps(found))").splitlines()[-1])
