import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.benchmarks.quality import training
from rt_keras.benchmarks.quality.tasks import make_task
from rt_keras.benchmarks.quality.tasks.text import Text
from rt_keras.callbacks import CentroidEMA

SHAPE = {
    "kind": "local_and_nearest",
    "positions": "relative",
    "keys": 8,
    "clusters": 4,
    "layers": 1,
    "width": 16,
}
RUN = {"task": "recall", "length": 32, "seed": 0, "steps": 20, "batch": 4}
RUN |= {**SHAPE, "learning_rate": 1e-3, "directory": None, "test_lengths": []}


def logits_of(task):
    keras.utils.set_random_seed(0)
    model = training.build(task, SHAPE)
    inputs, targets, weights = next(iter(training.batches(task, {"seed": 0, "batch": 3})))
    return model(inputs), inputs, targets, weights


def test_logits_are_of_the_scored_positions():
    task = make_task("mqar")
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
    task = make_task("listops", 64)
    logits, inputs, targets, _ = logits_of(task)
    assert logits.shape == [3, 10] and targets.shape == [3]
    keras.utils.set_random_seed(0)
    longer = training.build(make_task("listops", 80), SHAPE)
    padded = {"tokens": tf.pad(inputs["tokens"], [[0, 0], [0, 16]])}
    np.testing.assert_allclose(longer(padded), logits, rtol=1e-4, atol=1e-6)


def test_keys_seen_of_long_sequences_are_not_counted():
    assert training.keys_seen(None, make_task("needle", 8193), seed=0) is None


def test_padding_is_no_query():
    task = make_task("listops", 64)
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
    # The total loss, from Keras.
    losses = [
        keras.losses.sparse_categorical_crossentropy(targets, model(inputs), from_logits=True)
        for inputs, targets, _ in training.batches(task, settings, held_out=True).take(2)
    ]
    mean = sum(group["share"] * (group["loss"] or 0) for group in found.values())
    assert mean == pytest.approx(float(np.mean(losses)), rel=1e-4)


def test_another_length_is_scored_with_the_same_weights():
    model = training.build(make_task("recall", 32), SHAPE)
    longer = training.build(make_task("recall", 48), SHAPE)
    longer.set_weights(model.get_weights())
    held_out = training.batches(make_task("recall", 48), {**RUN, "batch": 1}, held_out=True)
    inputs, targets, _ = next(iter(held_out.unbatch().batch(64)))
    found = training.at_length(model, 48, RUN)
    losses = keras.losses.sparse_categorical_crossentropy(targets, longer(inputs), True)
    assert found["length"] == 48
    assert found["loss"] == pytest.approx(float(np.mean(losses)), rel=1e-5)


def test_tasks_without_groups_have_no_group_losses():
    assert training.group_losses(None, make_task("recall"), RUN) == {}


@pytest.mark.parametrize(
    "kind, moves",
    [("full", False), ("local_routing", True), ("local_routing_frozen", False)],
)
def test_centroids_move_unless_they_are_frozen(kind, moves):
    settings = {**SHAPE, "kind": kind}
    model = training.build(Text(32), settings)
    callbacks = training._callbacks(model, settings, 1, [], print)
    assert any(isinstance(callback, CentroidEMA) for callback in callbacks) == moves


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
    # A process that used more memory earlier has no new peak.
    assert found["peak_bytes"] >= 0
    assert [step for kind, step in reports if kind == "step"] == list(range(1, 21))
    again = training.train(RUN, lambda *report: None)
    assert again["loss"] == pytest.approx(found["loss"], rel=1e-3)
