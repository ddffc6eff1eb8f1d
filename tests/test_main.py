import subprocess
import sys

import pytest

LOGS = b"""I0000 00:00:1795299625.081738   20010 device_compiler.h:196] Compiled cluster using XLA!
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
2026-11-21 22:21:47.562216: I external/local_xla/xla/tsl/cuda/cudart_stub.cc:31] Could not find
E0000 00:00:1795299625.081738   20010 cuda_fft.cc:467] Unable to register cuFFT factory
"""
SILENT = "import os, sys\nfrom rt_keras import __main__\n__main__.silence_logs()\n"


def errors_of(code):
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stderr.splitlines()


def test_only_log_lines_are_left_out_of_standard_error():
    code = f"os.write(2, {LOGS!r} + b'a message\\n')\nprint('an error', file=sys.stderr)"
    assert sorted(errors_of(SILENT + code)) == ["a message", "an error"]


def test_messages_of_a_process_that_crashes_are_kept():
    code = f"{SILENT}os.write(2, b'F0000 fatal\\n')\nos.abort()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode < 0 and "F0000 fatal" in result.stderr


@pytest.mark.slow
def test_compilation_by_xla_logs_nothing():
    code = """
import absl.logging, tensorflow as tf
tf.function(lambda x: x + 1, jit_compile=True)(tf.ones([3]))
absl.logging.warning("of no concern"); tf.get_logger().warning("nor this")
"""
    assert errors_of(SILENT + code) == []
