"""Readers, from a configuration to answers."""

import pytest

from rt_keras.cli import main
from rt_keras.training import experiment, run
from rt_keras.training.config import make_config
from tests.data.checks import write_lines as write
from tests.training.tasks.checks import TINY, assert_batches_are_as_specified

LENGTHS = {"num_passages": 2, "passage_length": 10, "question_length": 8, "answer_length": 6}


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """Keys of a configuration of questions whose answer stands in a passage."""
    folder = tmp_path_factory.mktemp("questions")
    for split, count in (("train", 8), ("validation", 2), ("test", 3)):
        lines = [
            {
                "question": f"who is {n}?",
                "answers": [" ", f"A{n}", "other"],
                "passages": [f"{n} is A{n}", "x", "third"][: n + 1],
            }
            for n in range(count)
        ]
        lines.append({"question": "no answer", "passages": ["y"]})
        write(folder / f"{split}.jsonl", *lines)
    return {
        **TINY,
        "model.kind": "reader",
        "data.name": "question_folder",
        "data.directory": str(folder),
        "data.data_dir": str(folder / "prepared"),
        **{f"data.{name}": length for name, length in LENGTHS.items()},
    }


@pytest.mark.slow
def test_batches_are_as_specified(settings):
    assert_batches_are_as_specified(make_config(settings))


def test_the_preprocessor_has_the_lengths_of_the_configuration(settings):
    made = experiment.Experiment(make_config(settings))
    assert {name: getattr(made.preprocessor, name) for name in LENGTHS} == LENGTHS
    assert made.preprocessor.sequence_length == made.task.length(made) == 1 + 2 * 11 + 9 + 7
    assert made.load_split("test").element_spec["passages"].shape == [2]


@pytest.mark.slow
def test_a_reader_is_trained_and_answers(settings, tmp_path):
    run.train(make_config({**settings, "model.dropout": 0.1}), tmp_path / "run", verbose=0)
    scores = tmp_path / "scores.json"
    assert main(["evaluate", "--model", str(tmp_path / "run"), "--json", str(scores)]) == 0
    assert '"nats_per_token": ' in scores.read_text() and '"questions": 3' in scores.read_text()
