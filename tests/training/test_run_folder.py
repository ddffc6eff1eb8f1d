import shutil

import pytest

from rt_keras import files
from rt_keras.training import config as config_lib
from tests.training.test_run import assert_equal_runs


@pytest.mark.end_to_end
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(
    train, tiny_run, tmp_path, capsys
):
    shutil.copytree(tiny_run, tmp_path / "run")
    (last,) = tmp_path.glob("run/checkpoints/4.data*")
    last.write_bytes(last.read_bytes()[:-1])
    assert train(resume=True)["new_steps"] == 1
    assert f"{last} is damaged" in capsys.readouterr().out
    assert_equal_runs(tmp_path / "run", tiny_run)


def test_a_run_without_a_whole_checkpoint_is_not_trained_anew(train, tiny_run, tmp_path):
    shutil.copytree(tiny_run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(ValueError, match="holds no checkpoint to resume; --overwrite starts anew"):
        train(resume=True)
    assert (tmp_path / "run" / "model").exists()


@pytest.mark.end_to_end
def test_a_run_may_get_more_steps(train, tiny_run, tmp_path):
    longer = {"trainer.steps": 6, "trainer.validation_every": 1, "trainer.checkpoint_every": 50}
    shutil.copytree(tiny_run, tmp_path / "run")
    assert train(settings=longer, resume="auto")["new_steps"] == 2
    assert config_lib.load_config(str(tmp_path / "run" / "config.yaml")).trainer.steps == 6
    rows = (tmp_path / "run" / "log.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["epoch", "0", "1", "4", "5"]
    with pytest.raises(ValueError, match="trainer.steps is 4; the run has done 6"):
        train(resume=True)


def test_the_steps_of_a_cosine_may_not_change(train, tiny_run):
    settings = {"schedule.name": "cosine"}
    with pytest.raises(ValueError, match="schedule.name is 'cosine', and was 'constant'; so do tr"):
        train(tiny_run, {**settings, "trainer.steps": 6}, resume=True)


def test_a_folder_with_a_run_is_refused(train, tiny_run, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in tiny_run.rglob("*")}
    with pytest.raises(FileExistsError, match="already holds a run; --resume .* --overwrite"):
        train(tiny_run)
    del before[tiny_run / ".lock"]
    assert before.items() <= {path: path.stat().st_mtime_ns for path in tiny_run.rglob("*")}.items()
    with pytest.raises(FileNotFoundError, match="holds no run to resume"):
        train(resume=True)
    with pytest.raises(ValueError, match="exclude each other"):
        train(tiny_run, resume=True, overwrite=True)
    message = "differs from that of .*: optimizer.learning_rate is 0.0001, and was 0.01$"
    with pytest.raises(ValueError, match=message):
        train(tiny_run, {"optimizer.learning_rate": 1e-4}, resume=True)


@pytest.mark.end_to_end
def test_overwrite_deletes_the_run_and_nothing_else(train, tmp_path):
    folder = tmp_path / "run"
    (folder / "model").mkdir(parents=True)
    for name in ("config.yaml", "notes.txt", "model/old"):
        (folder / name).write_text("mine")
    train(overwrite=True)
    assert (folder / "notes.txt").read_text() == "mine"
    assert not (folder / "model" / "old").exists()


def test_a_run_whose_data_have_changed_is_not_resumed(train, tiny_run, tmp_path):
    shutil.copytree(tiny_run, tmp_path / "run")
    data = files.read_json(tmp_path / "run" / "data.json")
    data["files"]["train/1.txt"][0] += 1
    files.write_json(tmp_path / "run" / "data.json", data)
    with pytest.raises(
        ValueError, match=r"data have changed since .*train/1.txt has \d+ bytes, and"
    ):
        train(resume=True)
    with pytest.raises(ValueError, match="data have changed since"):
        train(resume="auto")
