import json
import signal
import subprocess
import sys
import warnings

import pytest

import rt_keras
from rt_keras import cli, files
from rt_keras.callbacks.keep_state import Stopped
from tests.cli.checks import assert_one_line

COMMANDS = [
    *["analyze causality", "analyze clusters", "analyze heads", "analyze attention", "convert t2t"],
    *(f"benchmark {name}" for name in ("speed", "quality", "pretrained", "compare")),
    *cli.COMMANDS,
]


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_help_has_an_example(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main([*command.split(), "--help"])
    assert stopped.value.code == 0
    help_text = " ".join(capsys.readouterr().out.split())
    assert f"example: rt-keras {command}" in help_text


def test_the_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"rt_keras {rt_keras.__version__}\n"


def test_help_imports_nothing_heavy():
    script = (
        "import contextlib, sys; from rt_keras import cli\n"
        "with contextlib.suppress(SystemExit): cli.main(['configs', '--help'])\n"
        "print(sorted({'tensorflow', 'keras', 'official', 'numpy'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.stdout.splitlines()[-1] == "[]", result.stderr


@pytest.mark.parametrize(
    "error, status, message",
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (
            Stopped(signal.SIGTERM, 1200),
            143,
            "stopped by SIGTERM after step 1,200; --resume continues from there",
        ),
    ],
)
def test_a_signal_gives_one_line_and_its_exit_status(run, monkeypatch, error, status, message):
    def end():
        raise error

    monkeypatch.setattr(files, "config_folder", end)
    assert run("configs") == (status, "", f"rt-keras: {message}\n")


def test_python_m_rt_keras_is_the_command_and_fails_without_a_trace():
    # A command without heavy imports.
    command = [sys.executable, "-m", "rt_keras", "configs", "--json", __file__ + "/figures.json"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert_one_line(result.returncode, result.stderr, "--json must be a file that can be written")


def test_figures_with_an_error_are_written_before_it_is_reported(run, monkeypatch, tmp_path):
    path = tmp_path / "figures.json"
    monkeypatch.setattr("rt_keras.cli.configs.main", lambda args: {"error": "too few", "count": 1})
    status, output, error = run("configs", "--json", path)
    assert_one_line(status, error, "too few")
    assert json.loads(path.read_text())["count"] == 1 and f"wrote {path}" in output


def test_output_whose_reader_is_gone_is_no_error():
    # As in `rt-keras benchmark compare | head`, without heavy imports.
    code = "import sys; from rt_keras import cli; cli.run = lambda args: print('x' * 100_000)"
    code += "; sys.exit(cli.main(['configs']))"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 141


def test_warnings_are_one_line(monkeypatch, capsys):
    def configs(args):
        warnings.warn("this is\nodd", stacklevel=1)
        return {}

    monkeypatch.setattr("rt_keras.cli.configs.main", configs)
    assert cli.main(["configs"]) == 0
    assert capsys.readouterr().err == "rt-keras: warning: this is odd\n"


# `python -m rt_keras` is silent about what TensorFlow logs.

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
