"""Retrievers, from a configuration to scores."""

import numpy as np
import pytest
import tensorflow as tf

from rt_keras.models.retrieval.contrastive import InBatchLoss
from rt_keras.training import experiment
from rt_keras.training.batches import validation_batches
from rt_keras.training.config import make_config
from rt_keras.training.tasks import task_of_kind
from rt_keras.training.tasks.retriever import rank_scores
from tests.data.checks import write_lines as write
from tests.training.tasks.checks import TINY, assert_batches_are_as_specified, new_model

TASK = task_of_kind("retriever")


def write_questions(folder):
    """Questions whose passage has their letter; one has no passage, and is left out."""
    for split, count in (("train", 9), ("validation", 3), ("test", 5)):
        lines = []
        for number in range(count):
            x = "abcdefghi"[number]
            passages = {"passages": [f"it is {x}", "second"], "negatives": ["no", "never"]}
            lines.append({"question": f"{split} {x}?", **passages})
        lines[1] = {"question": f"{split} b?", "answers": ["b it is"], "negatives": ["no", "nor"]}
        lines.append({"question": "none", "negatives": ["no", "nor"]})
        write(folder / f"{split}.jsonl", *lines)
    return folder


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    folder = write_questions(tmp_path_factory.mktemp("questions"))
    return {
        **TINY,
        "model.kind": "retriever",
        "model.projection_dim": 8,
        "data.name": "question_folder",
        "data.directory": str(folder),
        "data.data_dir": str(folder / "prepared"),
        "data.sequence_length": 16,
        "data.question_length": 12,
    }


@pytest.mark.slow
@pytest.mark.parametrize("negatives", [0, 2])
def test_batches_are_as_specified(settings, negatives):
    config = make_config({**settings, "data.num_negatives": negatives})
    assert_batches_are_as_specified(config)
    inputs, labels, weights = next(iter(experiment.Experiment(config).training_batches()))
    assert inputs["passages"]["token_ids"].shape == (2, 1 + negatives, 16)
    assert labels.numpy().tolist() == [1, 1] == weights.numpy().tolist()


def test_the_model_has_the_options_of_the_configuration(settings):
    made, model = new_model({**settings, "model.temperature": 0.5, "model.pooling": "first"})
    assert type(model) is TASK.model_class
    assert (model.temperature, model.pooling, model.projection_dim) == (0.5, "first", 8)
    assert model.question_length == 12 and made.preprocessor.sequence_length == 16


@pytest.mark.slow
def test_passages_of_padding_do_not_count(settings):
    made, model = new_model(settings)
    examples = made.load_split("test")
    batches = list(made.task.evaluation_batches(model, examples, 4, made.preprocessor))
    # The last batch has one question.
    inputs, labels, weights = batches[-1]
    assert labels.numpy().tolist() == [1, 0, 0, 0] == weights.numpy().tolist()
    figures = made.task.figures(model, inputs, labels)
    assert float(figures["nats"][0]) == pytest.approx(0, abs=1e-6)
    assert float(figures["correct"][0]) == 1
    # In a full batch, they are those of the loss.
    inputs, labels, weights = batches[0]
    figures = made.task.figures(model, inputs, labels)
    losses = InBatchLoss(reduction=None)(labels, model(inputs))
    np.testing.assert_allclose(figures["nats"], losses, rtol=1e-4)
    assert float(losses[0]) > 0
    metric = made.task.loss_metric()
    metric.update_state(labels, model(inputs), sample_weight=weights)
    assert float(metric.result()) == pytest.approx(float(np.mean(losses)), rel=1e-4)


@pytest.mark.slow
def test_validation_needs_no_negatives(settings):
    made, model = new_model({**settings, "data.num_negatives": 2})
    batches, count = validation_batches(made, model, tf.distribute.get_strategy())
    first = next(iter(batches))[0]
    assert count == 2 and first["passages"]["token_ids"].shape == (2, 1, 16)


def test_ranks_are_those_of_a_loop():
    rng = np.random.default_rng(0)
    queries, vectors = rng.normal(size=[300, 3]), rng.normal(size=[40, 3])
    right = rng.integers(0, 40, 300).tolist()
    ranks = []
    for query, number in zip(queries, right):
        order = sorted(range(40), key=lambda other: -(query @ vectors[other]))
        ranks.append(1 + order.index(number))
    scores = rank_scores(queries, vectors, right)
    for k in (1, 5, 20):
        assert scores[f"recall_at_{k}"] == np.mean(np.array(ranks) <= k)
    assert scores["mean_reciprocal_rank"] == pytest.approx(np.mean(1 / np.array(ranks)))


@pytest.mark.slow
def test_a_question_is_searched_among_all_passages_of_the_split(settings):
    made, model = new_model(settings)
    examples = made.load_split("test")
    scores = made.task.text_scores(model, examples, 2, made.preprocessor)
    pairs = list(examples.as_numpy_iterator())
    assert len(pairs) == 5
    queries = model.embed_texts([x["question"].decode() for x in pairs], 12)
    vectors = model.embed_texts([x["passages"][0].decode() for x in pairs])
    assert scores == pytest.approx(rank_scores(queries, vectors, list(range(5))))
    assert list(scores) == [name for name, _ in made.task.text_units]
