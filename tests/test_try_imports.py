import os

import pytest

from rt_keras.try_imports import try_imports

MODULES = {
    "fine_module": "",
    "raising_module": "raise RuntimeError('two\\nlines')",
    "ending_module": "import os; os._exit(7)",
    "killed_module": "import os; os.kill(os.getpid(), 9)",
    "talking_module": "print('hello')",
}


@pytest.fixture(autouse=True)
def modules(tmp_path, monkeypatch):
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    monkeypatch.setenv("PYTHONPATH", path)


def test_each_module_is_tried_even_after_one_that_ends_the_process(capfd):
    assert try_imports(MODULES) == (
        {
            "fine_module": None,
            "raising_module": "RuntimeError: two lines",
            "ending_module": "importing it ended the process with status 7",
            "killed_module": "importing it ended the process with status -9",
            "talking_module": None,
        },
        [],
    )
    assert capfd.readouterr() == ("", "")


def test_nothing_to_import_is_no_problem():
    assert try_imports([]) == ({}, [])


@pytest.mark.end_to_end
def test_devices_are_told_once_tensorflow_is_imported():
    problems, devices = try_imports(["tensorflow", "ending_module", "fine_module"])
    assert problems["tensorflow"] is None and devices == []
    problems, devices = try_imports(["tensorflow", "fine_module"])
    assert devices[0].startswith("CPU:0")
