import keras
import pytest

from rt_keras.training import experiment
from rt_keras.training.tasks import TASKS, task_of, task_of_kind


def test_a_model_has_the_task_of_its_configuration(tiny_run):
    task = task_of(experiment.load_model(tiny_run))
    assert task is task_of_kind("causal_lm") and task.continues_text


def test_other_models_have_no_task():
    with pytest.raises(ValueError, match="RoutingTransformerImageLM.* Received: a Sequential"):
        task_of(keras.Sequential())


def test_a_task_has_scores_in_the_units_that_it_names():
    for kind, task in zip(TASKS, map(task_of_kind, TASKS), strict=True):
        sums = {"nats": 2.0, "labels": 2.0, "correct": 1.0}
        scores = task.scores(sums, counts={"bytes": 1, "words": 1})
        assert list(scores) == [name for name, _ in task.units], kind
        assert scores[task.loss_name] == 1.0, kind
