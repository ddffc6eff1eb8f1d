"""Trial imports in a separate process, which a broken module may crash.

A library compiled for another processor or another version of CUDA does not raise an exception.
"""

import importlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path


def try_imports(names):
    """Imports modules in another process, one after the other.

    Args:
        names: list of strings, the modules.

    Returns:
        A tuple of a dictionary from each name to its problem, or None, and a list of strings, the
        devices of TensorFlow, which is empty if TensorFlow was not imported.

    >>> problems, devices = try_imports(["json", "no_such_module"])
    >>> problems["json"], problems["no_such_module"]
    (None, "ModuleNotFoundError: No module named 'no_such_module'")
    >>> devices
    []
    """
    problems, devices = {}, []
    # A process that crashed has tried at least one more module.
    while rest := [name for name in names if name not in problems]:
        found, status = _run(rest)
        devices = found.pop("devices", devices)
        problems |= found
        if len(found) < len(rest):
            problems[rest[len(found)]] = f"importing it ended the process with status {status}"
    return problems, devices


def _run(names):
    """Returns the results that a process wrote, and its exit status."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found"
        path.touch()
        command = [sys.executable, "-m", __name__, str(path), *names]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        status = subprocess.run(command, stdin=subprocess.DEVNULL, **quiet).returncode
        lines = path.read_text(encoding="utf-8").splitlines()
    return dict(json.loads(line) for line in lines), status


def main(path, *names):
    """Imports modules and appends a line on each, and then on TensorFlow's devices, to a file."""
    with open(path, "a", encoding="utf-8", buffering=1) as file:

        def tell(name, value):
            file.write(json.dumps([name, value]) + "\n")

        for name in names:
            tell(name, _problem(name))
        if "tensorflow" in sys.modules:
            tell("devices", _devices())


def _problem(name):
    try:
        importlib.import_module(name)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return None


def _devices():
    """Returns TensorFlow's devices, each with its number and, for a GPU, its model."""
    import tensorflow as tf

    def words(device):
        number = device.name.removeprefix("/physical_device:")
        kind = tf.config.experimental.get_device_details(device).get("device_name")
        return f"{number} ({kind})" if kind else number

    return [words(device) for device in tf.config.list_physical_devices()]


if __name__ == "__main__":
    main(*sys.argv[1:])
