import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.benchmarks.quality import training
from rt_keras.benchmarks.quality.tasks import make_task
from rt_keras.benchmarks.quality.tasks.text import Text
from rt_keras.callbacks import CentroidEMA

SHAPE = {"kind": "local_and_nearest", "positions": "relative", "keys": 8, "clusters": 4}
SHAPE |= {"layers": 1, "width": 16}
RUN = {**SHAPE, "task": "recall", "seed": 0, "batch": 4, "steps": 20}
RUN |= {"learning_rate": 1e-3, "directory": None}


def logits_of(task):
    keras.utils.set_random_seed(0)
    model = training.build(task, SHAPE)
    inputs, targets, weights = next(iter(training.batches(task, {"seed": 0, "batch": 3})))
    return model(inputs), inputs, targets, weights


@pytest.mark.weekly
def test_the_scored_positions_get_the_logits_that_all_would_get(books):
    # Text scores all positions, so its model has no places to pick.
    text = Text(32, str(books))
    everywhere, inputs, _, _ = logits_of(text)
    assert everywhere.shape == [3, 32, 256] and set(inputs) == {"tokens"}
    text.scored = 2
    keras.utils.set_random_seed(0)
    places = tf.constant([[3, 30], [0, 1], [31, 30]])
    found = training.build(text, SHAPE)({**inputs, "places": places})
    expected = tf.gather(everywhere, places, batch_dims=1)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    task = make_task("mqar")
    _, targets, weights = next(iter(task.batches(0, 3)))
    _, found, ones = next(iter(training.batches(task, {"seed": 0, "batch": 3})))
    np.testing.assert_array_equal(tf.boolean_mask(targets, weights), tf.reshape(found, 12))
    assert (ones.numpy() == 1).all()


def test_padding_is_no_query_whose_keys_are_counted():
    task = make_task("listops", 64)
    model = training.build(task, {**SHAPE, "kind": "full"})
    tokens, _, _ = next(iter(task.batches(0, 1, held_out=True)))
    real = np.count_nonzero(tokens)
    assert training.keys_seen(model, task, 0) == pytest.approx((real + 1) / 2)
    # Nor are those of long sequences.
    assert training.keys_seen(None, make_task("needle", 8193), seed=0) is None


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


@pytest.mark.weekly
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


def test_centroids_move_unless_they_are_frozen():
    for kind, moves in (("full", False), ("local_routing", True), ("local_routing_frozen", False)):
        settings = {**SHAPE, "kind": kind}
        callbacks = training._callbacks(training.build(Text(32), settings), settings, 1, [], print)
        assert any(isinstance(callback, CentroidEMA) for callback in callbacks) == moves
