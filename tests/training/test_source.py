import json
import os
import shutil

import pytest

from rt_keras.training import source
from rt_keras.training.config import make_config
from rt_keras.training.experiment import Experiment


@pytest.fixture
def run(books, tmp_path):
    """An experiment that reads a copy of a folder, and the folder of its run."""
    shutil.copytree(books, tmp_path / "texts")
    settings = {"data.name": "text_folder", "data.directory": str(tmp_path / "texts")}
    experiment = Experiment(make_config({**settings, "data.data_dir": str(tmp_path / "prepared")}))
    source.write(experiment, tmp_path)
    return experiment, tmp_path


def test_data_that_stay_are_accepted(run):
    experiment, output = run
    (output / "texts" / "test" / "0.txt").write_text("Only the training split counts.")
    source.check(experiment, output)
    assert len(json.loads((output / "data.json").read_text())["files"]) == 3


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda path: path.write_text("shorter"), r"train/1.txt has 7 bytes, and had [\d,]+\."),
        (os.unlink, r"train/1.txt is missing\."),
        (lambda path: os.utime(path, ns=(0, 0)), r"train/1.txt was written again\."),
        (lambda path: path.with_name("00.txt").write_text("a"), r"train/00.txt is new\."),
    ],
    ids=["bytes", "missing", "time", "new"],
)
def test_a_file_that_changed_is_named(run, change, message):
    experiment, output = run
    change(output / "texts" / "train" / "1.txt")
    with pytest.raises(ValueError, match=f"data have changed since .* began: .*{message}"):
        source.check(experiment, output)


def test_a_file_that_was_cut_counts_whole(tmp_path):
    path = tmp_path / "book.txt"
    path.write_bytes(b"line\n" * 100)
    experiment = Experiment(make_config({"data.name": "text_file", "data.directory": str(path)}))
    source.write(experiment, tmp_path)
    source.check(experiment, tmp_path)
    path.write_bytes(b"line\n" * 101)
    with pytest.raises(ValueError, match="book.txt has 505 bytes, and had 500"):
        source.check(experiment, tmp_path)


def test_another_version_of_a_set_is_refused(tmp_path):
    settings = {"model.kind": "image_lm", "data.name": "mnist", "data.data_dir": str(tmp_path)}
    experiment = Experiment(make_config(settings))
    source.write(experiment, tmp_path)
    source.check(experiment, tmp_path)
    saved = tmp_path / "data.json"
    assert json.loads(saved.read_text()) == {"set": "mnist/3.0.1"}
    saved.write_text('{"set": "mnist/2.0.0"}')
    with pytest.raises(ValueError, match="they are mnist/3.0.1, and were mnist/2.0.0"):
        source.check(experiment, tmp_path)


def test_a_run_that_does_not_say_what_its_data_were(run):
    experiment, output = run
    (output / "data.json").unlink()
    with pytest.raises(FileNotFoundError, match="cannot be resumed: it has no data.json"):
        source.check(experiment, output)
