import pytest

from rt_keras.data.data_sets import DataSets
from rt_keras.data.python_source import PythonSource

SETS = DataSets(
    "one of these",
    "mnist|squad(/v1.1)?",
    folders={"text_folder": "TextFolder", "enwik8": "Enwik8"},
    installed={"python_source": "PythonSource"},
)


@pytest.mark.parametrize("name", ["mnist", "squad/v1.1", "text_folder", "python_source"])
def test_sets_are_known_by_their_names(name):
    assert name in SETS
    assert f"{name}2" not in SETS and name[:-1] not in SETS


@pytest.mark.parametrize(
    "name, directory, message",
    [
        ("imdb", None, "name must be one of these. Received: name='imdb'"),
        ("enwik8", None, "directory must be the path to read for enwik8. Received: None"),
        ("mnist", "x", "must be None for mnist; it is for text_folder, enwik8. .*directory='x'"),
        ("python_source", "x", "directory must be None for python_source; "),
    ],
)
def test_names_and_folders_that_do_not_go_together(name, directory, message):
    with pytest.raises(ValueError, match=message):
        SETS.builder(name, directory)


def test_sets_without_folders_take_none():
    with pytest.raises(ValueError, match="must be None for mnist; it is for other data"):
        DataSets("mnist", "mnist").builder("mnist", "x")


def test_builders_are_those_of_the_names(tmp_path):
    assert isinstance(SETS.builder("python_source", data_dir=tmp_path), PythonSource)
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "a.txt").write_text("a text")
    builder = SETS.builder("text_folder", tmp_path, data_dir=tmp_path / "prepared")
    assert builder.directory == tmp_path.resolve() and list(builder.files) == ["test"]
