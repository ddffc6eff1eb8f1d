"""Fixtures for the tests of the scripts that draw pictures."""

import importlib
import runpy
import sys
from pathlib import Path

import pytest

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"


@pytest.fixture
def picture_script(monkeypatch):
    """Returns a function that imports a script by name; scripts can import their neighbors."""
    monkeypatch.syspath_prepend(PICTURES)
    return importlib.import_module


@pytest.fixture
def run_without_arguments(monkeypatch):
    """A function of a script's name that runs it as a command without arguments."""

    def run(name):
        monkeypatch.setattr(sys, "argv", [f"{name}.py"])
        runpy.run_path(PICTURES / f"{name}.py", run_name="__main__")

    monkeypatch.syspath_prepend(PICTURES)
    return run
