"""What the tests of the pictures' scripts share."""

import importlib
import runpy
import sys
from pathlib import Path

import pytest

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"


@pytest.fixture
def picture_script(monkeypatch):
    """A function of a script's name that imports it; the script may import its neighbours."""
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
