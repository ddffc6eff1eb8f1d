import json

import pytest

import rt_keras
from rt_keras import cli
from rt_keras.layers import FullHeads
from rt_keras.training.config import make_config
from rt_keras.training.experiment import Experiment, load_model
from rt_keras.training.tasks import task_of, task_of_kind
from tests.models.adapted.llama_folder import write_llama
from tests.models.adapted.sentence_folder import write_embedder
from tests.training.tasks.checks import TINY_RUN, assert_batches_are_as_specified
from tests.training.tasks.test_retriever import write_questions


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    model = rt_keras.adapt(write_embedder(tmp_path_factory.mktemp("sentences")), [FullHeads(2)])
    folder = tmp_path_factory.mktemp("adapted")
    model.save_to_preset(folder)
    return folder


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    return write_questions(tmp_path_factory.mktemp("questions"))


def settings(preset, questions, **more):
    return {
        **TINY_RUN,
        "model.kind": "adapted_retriever",
        "model.preset": str(preset),
        "data.name": "question_folder",
        "data.directory": str(questions),
        "data.data_dir": str(questions / "prepared"),
        "data.sequence_length": 12,
        "data.question_length": 8,
        "data.num_negatives": 1,
        **more,
    }


@pytest.mark.slow
def test_its_inputs_are_those_of_the_model(preset, questions):
    config = make_config(settings(preset, questions))
    assert_batches_are_as_specified(config)
    experiment = Experiment(config)
    (inputs, _, _) = experiment.task.example_spec(experiment, batch_size=2)
    assert sorted(inputs["question"]) == ["padding_mask", "segment_ids", "token_ids"]
    assert inputs["passages"]["token_ids"].shape == [2, 2, 12]
    model = experiment.make_model()
    assert task_of(model) is task_of_kind("adapted_retriever") and model.question_length == 8


def test_a_language_model_is_no_retriever(questions, tmp_path):
    rt_keras.adapt(write_llama(tmp_path), [FullHeads(4)]).save_to_preset(tmp_path / "preset")
    experiment = Experiment(make_config(settings(tmp_path / "preset", questions)))
    with pytest.raises(ValueError, match="only text embedders can be used here"):
        experiment.make_model()


@pytest.mark.slow
def test_trained_and_evaluated_on_the_command_line(preset, questions, tmp_path, capsys):
    keys = settings(preset, questions, **{"model.lora_rank": 2, "model.temperature": 0.1})
    keys |= {"trainer.steps": 2, "trainer.validation_every": 2}
    sets = [word for x, y in keys.items() for word in ("--set", f"{x}={json.dumps(y)}")]
    output = tmp_path / "run"
    words = ["train", "--config", "finetune_retriever", *sets, "--output", str(output)]
    assert cli.main(words) == 0, capsys.readouterr().err
    assert load_model(output).temperature == 0.1
    assert cli.main(["evaluate", "--model", str(output)]) == 0
    assert "recall at 1" in capsys.readouterr().out
