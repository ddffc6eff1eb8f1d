import json
import signal
import subprocess
import sys
import warnings

import pytest

import rt_keras
from rt_keras import cli, files
from rt_keras.callbacks.stop_at_signal import Stopped
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


def test_ctrl_c_gives_one_line(run, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "config_folder", interrupted)
    assert run("configs") == (130, "", "rt-keras: interrupted\n")


def test_a_run_that_a_signal_ended_has_its_exit_status(run, monkeypatch):
    def stopped():
        raise Stopped(signal.SIGTERM, 1200)

    monkeypatch.setattr(files, "config_folder", stopped)
    message = "rt-keras: stopped by SIGTERM after step 1,200; --resume continues from there\n"
    assert run("configs") == (143, "", message)


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
