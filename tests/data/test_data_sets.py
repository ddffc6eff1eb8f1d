import subprocess
import sys

import pytest

from rt_keras import data
from rt_keras.data.data_sets import DataSets

SETS = DataSets(
    "one of these",
    "mnist|squad(/v1.1)?",
    folders={"text_folder": "TextFolder", "enwik8": "Enwik8"},
    installed={"python_source": "PythonSource"},
)


def test_sets_are_known_by_their_names():
    for name in ("mnist", "squad/v1.1", "text_folder", "python_source"):
        assert name in SETS
        assert f"{name}2" not in SETS and name[:-1] not in SETS


@pytest.mark.parametrize(
    "name, directory, message",
    [
        ("imdb", None, "name must be one of these. Received: name='imdb'"),
        ("enwik8", None, ".data.directory. must be the path to read for enwik8. Received: "),
        ("mnist", "x", "must be None for mnist; it is for text_folder, enwik8. .*directory='x'"),
        ("python_source", "x", "directory must be None for python_source; "),
    ],
)
def test_names_and_folders_that_do_not_go_together(name, directory, message):
    with pytest.raises(ValueError, match=message):
        SETS.builder(name, directory)


def test_all_names_are_there():
    assert all(callable(getattr(data, name)) for name in data.__all__)
    assert set(data.__all__) <= set(dir(data))


def test_heavy_packages_are_not_imported_before_they_are_used():
    heavy = ["tensorflow", "keras_hub", "tensorflow_text", "tensorflow_datasets"]
    code = f"import sys, rt_keras.data; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
