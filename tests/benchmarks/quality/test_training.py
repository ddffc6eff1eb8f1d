import multiprocessing

import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.benchmarks.quality import training
from rt_keras.benchmarks.quality.tasks import TASKS
from rt_keras.benchmarks.quality.tasks.text import Text
from rt_keras.callbacks import CentroidEMA

SHAPE = {"kind": "local_and_nearest", "keys": 8, "clusters": 4, "layers": 1, "width": 16}
RUN = {"task": "recall", "length": 32, "seed": 0, "steps": 20, "batch": 4}
RUN |= {**SHAPE, "learning_rate": 1e-3, "directory": None, "test_lengths": []}


def logits_of(task):
    keras.utils.set_random_seed(0)
    model = training.build(task, SHAPE)
    inputs, targets, weights = next(iter(training.batches(task, {"seed": 0, "batch": 3})))
    return model(inputs), inputs, targets, weights


def test_logits_are_of_the_scored_positions():
    task = TASKS["mqar"]()
    logits, inputs, targets, weights = logits_of(task)
    assert logits.shape == [3, 4, 8192] and targets.shape == weights.shape == [3, 4]
    tokens, all_targets, all_weights = next(iter(task.batches(0, 3)))
    np.testing.assert_array_equal(inputs["tokens"], tokens)
    np.testing.assert_array_equal(
        tf.boolean_mask(all_targets, all_weights), tf.reshape(targets, 12)
    )
    assert (weights.numpy() == 1).all()


def test_the_scored_positions_get_the_logits_that_all_would_get(books):
    # Text scores all positions, so its model has no places to pick.
    text = Text(32, str(books))
    everywhere, inputs, _, _ = logits_of(text)
    assert everywhere.shape == [3, 32, 256] and set(inputs) == {"tokens"}
    text.scored = 2
    keras.utils.set_random_seed(0)
    some = training.build(text, SHAPE)
    places = tf.constant([[3, 30], [0, 1], [31, 30]])
    np.testing.assert_allclose(
        some({**inputs, "places": places}),
        tf.gather(everywhere, places, batch_dims=1),
        rtol=1e-5,
        atol=1e-6,
    )


def test_labels_depend_on_no_padding():
    task = TASKS["listops"](64)
    logits, inputs, targets, _ = logits_of(task)
    assert logits.shape == [3, 10] and targets.shape == [3]
    keras.utils.set_random_seed(0)
    longer = training.build(TASKS["listops"](80), SHAPE)
    padded = {"tokens": tf.pad(inputs["tokens"], [[0, 0], [0, 16]])}
    np.testing.assert_allclose(longer(padded), logits, rtol=1e-4, atol=1e-6)


def test_keys_seen_of_long_sequences_are_not_counted():
    assert training.keys_seen(None, TASKS["needle"](8193), seed=0) is None


def test_padding_is_no_query():
    task = TASKS["listops"](64)
    model = training.build(task, {**SHAPE, "kind": "full"})
    tokens, _, _ = next(iter(task.batches(0, 1, held_out=True)))
    real = np.count_nonzero(tokens)
    assert training.keys_seen(model, task, 0) == pytest.approx((real + 1) / 2)


def test_group_losses_are_those_of_their_predictions(books, monkeypatch):
    monkeypatch.setattr(training, "TEST_BATCHES", 2)
    task, settings = Text(32, str(books)), {**SHAPE, "seed": 0, "batch": 2}
    keras.utils.set_random_seed(0)
    model = training.build(task, settings)
    found = training.group_losses(model, task, settings)
    assert set(found) == {"near", "far", "new"}
    assert sum(group["share"] for group in found.values()) == pytest.approx(1)
    # The whole loss, by Keras.
    losses = [
        keras.losses.sparse_categorical_crossentropy(targets, model(inputs), from_logits=True)
        for inputs, targets, _ in training.batches(task, settings, held_out=True).take(2)
    ]
    mean = sum(group["share"] * (group["loss"] or 0) for group in found.values())
    assert mean == pytest.approx(float(np.mean(losses)), rel=1e-4)


def test_another_length_is_scored_with_the_same_weights():
    model = training.build(TASKS["recall"](32), SHAPE)
    longer = training.build(TASKS["recall"](48), SHAPE)
    longer.set_weights(model.get_weights())
    held_out = training.batches(TASKS["recall"](48), {**RUN, "batch": 1}, held_out=True)
    inputs, targets, _ = next(iter(held_out.unbatch().batch(64)))
    found = training.at_length(model, 48, RUN)
    losses = keras.losses.sparse_categorical_crossentropy(targets, longer(inputs), True)
    assert found["length"] == 48
    assert found["loss"] == pytest.approx(float(np.mean(losses)), rel=1e-5)


def test_tasks_without_groups_have_no_group_losses():
    assert training.group_losses(None, TASKS["recall"](), RUN) == {}


@pytest.mark.parametrize(
    "kind, moves",
    [("full", False), ("local_routing", True), ("local_routing_frozen", False)],
)
def test_centroids_move_unless_they_are_frozen(kind, moves):
    settings = {**SHAPE, "kind": kind}
    model = training.build(Text(32), settings)
    callbacks = training._callbacks(model, settings, 1, [], print)
    assert any(isinstance(callback, CentroidEMA) for callback in callbacks) == moves


class Answers:
    """Stands in for the process of a run: its messages were sent before."""

    def __init__(self, monkeypatch, *messages):
        self.messages, self.exitcode, self.ended = list(messages), -9, False
        context = multiprocessing.get_context("spawn")
        monkeypatch.setattr(context.__class__, "Process", lambda _, target, args, daemon: self)
        monkeypatch.setattr(context.__class__, "Pipe", lambda _: (self, self))

    def recv(self):
        if not self.messages:
            raise EOFError
        return self.messages.pop(0)

    def start(self):
        pass

    close = join = start

    def terminate(self):
        self.ended = True


def test_the_answer_of_the_process_comes_after_its_reports(monkeypatch, capsys):
    process = Answers(
        monkeypatch,
        ("step", 1),
        ("test", {"step": 1, "note": "accuracy 0.500"}),
        ("done", {"weights": 3}),
    )
    assert training.train_alone(RUN) == {"weights": 3}
    lines = capsys.readouterr().err.splitlines()
    name = "local_and_nearest on recall, seed 0"
    assert lines == [f"training {name}", f"{name}: step 1 of 20, accuracy 0.500"]
    assert process.ended


def test_errors_of_the_process_are_raised(monkeypatch):
    process = Answers(monkeypatch, ("error", FloatingPointError("the loss is nan at step 3")))
    with pytest.raises(FloatingPointError, match="step 3"):
        training.train_alone(RUN)
    assert process.ended


def test_a_process_that_is_gone_is_reported(monkeypatch):
    Answers(monkeypatch, ("step", 1))
    with pytest.raises(ChildProcessError, match="seed 0 ended with status -9, perhaps because"):
        training.train_alone(RUN)


@pytest.mark.end_to_end
def test_a_run_reports_what_it_learned_and_took():
    reports = []
    found = training.train(RUN, lambda *report: reports.append(report))
    assert found["settings"] == RUN and found["steps"] == list(range(1, 21))
    assert len(found["accuracy"]) == len(found["loss"]) == 20
    # Chance is ln 64; twenty steps hardly change it.
    assert all(loss == pytest.approx(4.16, abs=0.3) for loss in found["loss"])
    assert set(found["cluster_use"]) == {
        f"routing_0_{what}" for what in ("fullest", "empty", "entropy", "load_bias")
    }
    assert found["seconds"] > 0 and found["keys_seen"] > 1
    # A process that has needed more memory before has no new peak.
    assert found["peak_bytes"] >= 0
    assert [step for kind, step in reports if kind == "step"] == list(range(1, 21))
    again = training.train(RUN, lambda *report: None)
    assert again["loss"] == pytest.approx(found["loss"], rel=1e-3)
