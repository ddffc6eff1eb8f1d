"""Answers to questions, from a configuration to a score."""

import csv
import re

import pytest

from rt_keras.cli import main
from rt_keras.training.config import make_config
from rt_keras.training.run import train
from rt_keras.training.tasks import TASKS
from tests.data.checks import write_questions
from tests.training.tasks.checks import TINY, assert_batches_are_as_specified

TASK = TASKS["span"]


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("squad")
    write_questions(folder, train=8, validation=5)
    return {
        **TINY,
        "model.kind": "span",
        "model.sinusoidal_positions": True,
        "model.local.block_size": 16,
        "data.name": "squad",
        "data.data_dir": str(folder),
        "data.sequence_length": 32,
    }


@pytest.mark.end_to_end
def test_batches_are_as_specified(settings):
    config = make_config(settings)
    assert_batches_are_as_specified(config)


def test_a_folder_is_no_set_of_questions(tmp_path):
    with pytest.raises(ValueError, match="for kind span it must be squad or squad/v1.1$"):
        TASK.data_named("books")


@pytest.mark.end_to_end
def test_a_model_learns_to_answer(settings, tmp_path, capsys):
    longer = {"trainer.steps": 60, "trainer.validation_every": 30}
    train(make_config({**settings, **longer}), tmp_path / "run", verbose=0)
    with open(tmp_path / "run" / "log.csv", newline="") as file:
        *_, last = csv.DictReader(file)
    assert float(last["val_f1"]) >= float(last["val_exact_match"]) == 1.0
    command = ["evaluate", "--model", str(tmp_path / "run"), "--split", "validation"]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert re.search("exact match +1.0000", shown) and "questions" in shown and "labels" in shown
