import csv
import io
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from rt_keras.training import config as config_lib
from rt_keras.training import run, run_folder
from rt_keras.training.experiment import Experiment, make_rate


def test_a_run_without_a_whole_checkpoint_is_not_trained_anew(train, tiny_run, tmp_path, capsys):
    shutil.copytree(tiny_run, tmp_path / "run")
    for path in tmp_path.glob("run/checkpoints/*.data*"):
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="holds no intact checkpoint; --overwrite starts"):
        train(resume=True)
    assert "run/checkpoints/4 is damaged" in capsys.readouterr().out
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(ValueError, match="holds no intact checkpoint; --overwrite starts"):
        train(resume=True)
    assert (tmp_path / "run" / "model").exists()


COSINE = {"schedule.name": "cosine", "schedule.warmup_steps": 2, "trainer.checkpoint_every": 2}


@pytest.mark.weekly
def test_a_cosine_that_has_ended_may_get_more_steps(train, tiny_settings, tmp_path):
    train(settings=COSINE)
    more = {"trainer.steps": 8, "trainer.validation_every": 1, "trainer.checkpoint_every": 50}
    longer = config_lib.make_config({**tiny_settings, **COSINE, **more})
    run.train(longer, tmp_path / "run", resume=True)
    rate = make_rate(longer)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "run" / "log.csv").read_text())))
    assert [int(row["epoch"]) for row in rows] == [0, 1, 4, 5, 6, 7]
    rates = [float(row["learning_rate"]) for row in rows]
    np.testing.assert_allclose(rates[2:], list(map(rate, (5, 6, 7, 8))), rtol=1e-6)
    assert config_lib.load_config(str(tmp_path / "run" / "config.yaml")).trainer.steps == 8


def test_steps_may_not_become_less(train, tiny_run, tiny_settings, tmp_path):
    shutil.copytree(tiny_run, tmp_path / "run")
    with pytest.raises(ValueError, match="trainer.steps is 2; the run has done 4"):
        train(settings={"trainer.steps": 2}, resume=True)
    config = config_lib.make_config({**tiny_settings, **COSINE})
    run_folder.write_config(tmp_path, config)
    with pytest.raises(ValueError, match="trainer.steps is 2, and was 4$"):
        train(tmp_path, {**COSINE, "trainer.steps": 2}, resume=True)
    with pytest.raises(ValueError, match="schedule.warmup_steps is 1, and was 2$"):
        train(tmp_path, {**COSINE, "trainer.steps": 6, "schedule.warmup_steps": 1}, resume=True)


def test_paths_are_written_so_that_they_hold_in_every_folder(tiny_settings, tmp_path, monkeypatch):
    paths = {
        "data.directory": "books",
        "data.data_dir": "../prepared",
        "tokenizer.name": "words",
        "tokenizer.vocabulary": "words.txt",
        "model.preset": "runs/first",
    }
    (tmp_path / "here" / "run").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    config = config_lib.make_config({**tiny_settings, **paths})
    run_folder.write_config(tmp_path / "here" / "run", config)
    assert config.data.directory == "books"
    saved = config_lib.load_config("run/config.yaml")
    assert saved.data.directory == str(tmp_path / "here" / "books")
    assert saved.data.data_dir == str(tmp_path / "prepared")
    assert saved.tokenizer.vocabulary == str(tmp_path / "here" / "words.txt")
    assert saved.model.preset == str(tmp_path / "here" / "runs" / "first")
    # Those that hold everywhere are written as they are.
    for value in (None, "gs://bucket/sets", "~/sets"):
        config = config_lib.make_config({**tiny_settings, "data.data_dir": value})
        run_folder.write_config(tmp_path, config)
        assert config_lib.load_config(tmp_path / "config.yaml").data.data_dir == value


def test_a_relative_path_is_that_of_the_run(train, tiny_run, tiny_settings, tmp_path, monkeypatch):
    shutil.copytree(tiny_run, tmp_path / "run")
    directory = Path(tiny_settings["data.directory"])
    relative = {"data.directory": directory.name}
    monkeypatch.chdir(directory.parent)
    assert train(tmp_path / "run", relative, resume=True)["new_steps"] == 0
    assert train(tmp_path / "run", resume=True)["new_steps"] == 0
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="data.directory is .*/books', and was .*/books'"):
        train(tmp_path / "run", relative, resume=True)


def test_a_folder_with_a_run_is_refused(train, tiny_run, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in tiny_run.rglob("*")}
    with pytest.raises(FileExistsError, match="already holds a run; --resume .* --overwrite"):
        train(tiny_run)
    del before[tiny_run / ".lock"]
    assert before.items() <= {path: path.stat().st_mtime_ns for path in tiny_run.rglob("*")}.items()
    with pytest.raises(FileNotFoundError, match="holds no run to resume"):
        train(resume=True)
    with pytest.raises(ValueError, match="mutually exclusive"):
        train(tiny_run, resume=True, overwrite=True)
    message = "differs from that of .*: optimizer.learning_rate is 0.0001, and was 0.01$"
    with pytest.raises(ValueError, match=message):
        train(tiny_run, {"optimizer.learning_rate": 1e-4}, resume=True)


@pytest.mark.slow
def test_overwrite_deletes_the_run_and_nothing_else(train, tmp_path):
    folder = tmp_path / "run"
    (folder / "model").mkdir(parents=True)
    for name in ("config.yaml", "notes.txt", "model/old"):
        (folder / name).write_text("mine")
    train(overwrite=True)
    assert (folder / "notes.txt").read_text() == "mine"
    assert not (folder / "model" / "old").exists()


@pytest.fixture
def copied(books, tmp_path):
    """An experiment that reads a copy of a folder, and the folder of its run."""
    shutil.copytree(books, tmp_path / "texts")
    settings = {"data.name": "text_folder", "data.directory": str(tmp_path / "texts")}
    config = config_lib.make_config({**settings, "data.data_dir": str(tmp_path / "prepared")})
    run_folder.start(tmp_path, Experiment(config))
    run_folder.write_config(tmp_path, config)
    return Experiment(config), tmp_path


@pytest.mark.parametrize(
    "change",
    [
        os.unlink,
        lambda path: os.utime(path, ns=(0, 0)),
        lambda path: path.with_name("1.txt.txt").write_text("a"),
    ],
    ids=["missing", "time", "new"],
)
def test_a_run_whose_data_have_changed_is_not_resumed(copied, change):
    experiment, output = copied
    (output / "texts" / "test" / "0.txt").write_text("Only the training split counts.")
    assert run_folder.check(output, experiment, resume=True, overwrite=False)
    change(output / "texts" / "train" / "1.txt")
    for resume in (True, "auto"):
        with pytest.raises(ValueError, match="have changed since .*train/1.txt[.tx]* is new, miss"):
            run_folder.check(output, Experiment(experiment.config), resume, overwrite=False)
