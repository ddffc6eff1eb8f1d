import json
import os
import subprocess
import sys
from importlib import metadata

import pytest

import rt_keras
from rt_keras import installation
from rt_keras.cli import doctor
from tests.cli.checks import assert_one_line
from tests.installed import record

BASE = ["rich>=13"]


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Records an installation whose base imports `json` and whose extra `plot` a module."""

    def install(requires, plot="", **options):
        record(tmp_path, requires, **options)
        (tmp_path / "plot_of_a_test.py").write_text(plot)

    monkeypatch.syspath_prepend(tmp_path)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setattr(doctor, "MODULES", {"": ("json",), "plot": ("plot_of_a_test",)})
    return install


@pytest.mark.end_to_end
def test_this_installation_has_no_problem(tmp_path):
    path = tmp_path / "figures.json"
    command = [sys.executable, "-m", "rt_keras", "doctor", "--json", str(path)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    figures = json.loads(path.read_text())
    assert figures["packages"]["tensorflow"] == metadata.version("tensorflow")
    assert figures["rt_keras"] == rt_keras.__version__ and figures["extras"]["train"]
    assert figures["devices"][0].startswith("CPU:0") and figures["broken_imports"] == {}
    lines = result.stdout.splitlines()
    assert "no problem found" in lines and len(lines) <= 30


def test_what_is_imported_is_of_extras_that_there_are():
    assert set(doctor.MODULES) <= set(installation.needed_packages())


def test_a_missing_extra_is_named_with_how_to_install_it(run, install):
    install([*BASE, 'no-such-package; extra == "plot"'], plot="raise RuntimeError")
    status, output, _ = run("doctor")
    assert status == 0 and "no problem found" in output
    (line,) = [line for line in output.splitlines() if line.startswith("extra plot")]
    assert line.split(maxsplit=4)[2:] == ["not", "installed", "pip install 'rt_keras[plot]'"]


def test_an_extra_of_which_a_part_is_missing_says_which(run, install):
    parts = ["rich>=99", "no-such-package", "pyyaml"]
    install([*BASE, *(f'{part}; extra == "plot"' for part in parts)])
    status, output, _ = run("doctor")
    assert status == 0
    assert f"rich is {metadata.version('rich')} and must be >=99, and 1 more" in output
    assert "pip install 'rt_keras[plot]'" in output and "no problem found" in output


def test_an_extra_that_is_broken_is_reported_in_one_line(run, install):
    install([*BASE, 'pyyaml; extra == "plot"'], plot="raise OSError('libplot.so: not found')")
    status, output, error = run("doctor")
    assert_one_line(status, error, "plot_of_a_test: OSError: libplot.so: not found")
    assert "extra plot" in output and "no problem found" not in output


@pytest.mark.parametrize(
    "requires, options, parts",
    [
        (["no-such-package>=2"], {}, ["no-such-package is missing"]),
        (["rich>=99"], {}, ["rich is ", "and must be >=99"]),
        (BASE, {"python": ">=3.99"}, ["Python is 3.", "and must be >=3.99"]),
        (["rich>=99", "no-such-package"], {}, ["rich is ", "(the first of 2 problems)"]),
    ],
)
def test_a_base_that_does_not_do_is_reported_in_one_line(run, install, requires, options, parts):
    install(requires, **options)
    status, output, error = run("doctor")
    assert_one_line(status, error, *parts)
    assert "memory" in output


def test_another_backend_of_keras_is_reported_with_what_to_do(run, install, monkeypatch, tmp_path):
    install(BASE)
    assert run("doctor")[0] == 0
    (tmp_path / "keras.json").write_text('{"backend": "torch"}')
    status, output, error = run("doctor")
    assert_one_line(status, error, "backend of Keras is torch", "KERAS_BACKEND=tensorflow")
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    assert run("doctor")[0] == 0
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    assert_one_line(*run("doctor")[::2], "backend of Keras is jax")
