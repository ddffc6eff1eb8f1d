"""Code on two replicas."""

import json
import subprocess
import sys
from pathlib import Path

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
    command = [sys.executable, "-c", f"{START}{code}\nprint(json.dumps(found))"]
    root = Path(__file__).parents[1]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])
