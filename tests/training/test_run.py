import csv

import keras
import numpy as np
import pytest

from rt_keras import files
from rt_keras.callbacks.checkpoints import Checkpoints
from rt_keras.training import config as config_lib
from rt_keras.training import experiment, run
from tests.callbacks.test_tensor_board import events


def weights(folder):
    """All weights of the best model."""
    return [weight.numpy() for weight in experiment.load_model(folder).weights]


def log_without_speed(folder):
    """The rows of the log, without columns that differ from run to run."""
    with open(folder / "log.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        del row["tokens_per_second"], row["waiting"]
    return rows


def assert_equal_runs(one, other):
    """Asserts that the best models, the logs and the final state have the same bits."""
    for a, b in zip(weights(one), weights(other), strict=True):
        np.testing.assert_array_equal(a, b)
    assert log_without_speed(one) == log_without_speed(other)
    states = [Checkpoints(folder / "checkpoints") for folder in (one, other)]
    assert states[0].steps()[-1] == states[1].steps()[-1]
    (arrays, values), (others, other_values) = (x.read(x.steps()[-1]) for x in states)
    # Speeds differ in length in the log.
    del values["log_bytes"], other_values["log_bytes"]
    assert values == other_values
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, others[name], err_msg=name)


def assert_equal_curves(one, other):
    """Asserts that TensorBoard has the same values at the same steps, except for the speed."""
    found, wanted = events(one), events(other)
    assert found.keys() == wanted.keys()
    for name, curve in wanted.items():
        assert found[name].keys() == curve.keys(), name
        if not name.endswith(("tokens_per_second", "waiting")):
            for step, value in curve.items():
                np.testing.assert_array_equal(found[name][step], value, err_msg=name)


def rate_that_explodes(config):
    """An optimizer that fails after two steps."""
    rate = keras.optimizers.schedules.PiecewiseConstantDecay([1], [1e-3, 1e30])
    return keras.optimizers.Adam(rate)


def test_a_run_leaves_what_it_promises(tiny_run):
    names = {path.name for path in tiny_run.iterdir()}
    assert names == {
        *("config.yaml", "data.json", "log.csv", "model", "checkpoints", "tensorboard", ".lock")
    }
    assert config_lib.load_config(tiny_run / "config.yaml").trainer.steps == 4
    with open(tiny_run / "log.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2
    assert float(rows[1]["val_nats_per_token"]) < float(rows[0]["val_nats_per_token"]) < 6
    assert 0 < float(rows[0]["routing_0_entropy"]) <= 1
    assert float(rows[0]["learning_rate"]) > 0 and float(rows[0]["routing_0_load_bias"]) > 0
    assert float(rows[1]["tokens_per_second"]) > 0 and 0 <= float(rows[1]["waiting"]) <= 1
    assert len(list(tiny_run.glob("tensorboard/*/events*"))) == 2


def interrupted(event, at):
    """A callback that interrupts a run at the start of a batch or an epoch."""

    def interrupt(number, logs):
        if number == at:
            raise KeyboardInterrupt

    return keras.callbacks.LambdaCallback(**{event: interrupt})


LOCAL = [{"class": "LocalHeads", "num_heads": 1, "block_size": 16}]
# All random features are on.
RESUMED = {
    "trainer.steps": 12,
    "trainer.validation_every": 6,
    "trainer.checkpoint_every": 2,
    "trainer.log_every": 2,
    "model.dropout": 0.1,
    "model.token_dropout": 0.1,
    "model.heads[0].num_probes": 2,
    "centroids.initialize_from_batch": True,
    "centroids.restart_after": 1,
}


@pytest.mark.slow
@pytest.mark.parametrize("stateful", [pytest.param(False, marks=pytest.mark.weekly), True])
def test_a_resumed_run_with_its_curves_is_equal_to_one_that_was_not_interrupted(
    train, tmp_path, monkeypatch, stateful
):
    settings, whole = {**RESUMED, "trainer.stateful": stateful}, tmp_path / "whole"
    train(whole, settings)
    callbacks = run._callbacks
    for event, at, resume in (
        ("on_train_batch_begin", 1, False),
        ("on_epoch_begin", 1, True),
        ("on_train_batch_begin", 4, True),
    ):
        added = interrupted(event, at)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(run, "_callbacks", lambda *given: [*callbacks(*given), added])  # noqa: B023
            train(settings=settings, resume=resume)
    train(settings=settings, resume=True)
    assert_equal_runs(tmp_path / "run", whole)
    for part in ("train", "validation"):
        assert_equal_curves(
            *(folder / "tensorboard" / part for folder in (tmp_path / "run", whole))
        )


def test_a_folder_in_use_is_refused(train, tmp_path):
    message = "run is in use by another process"
    with files.locked(tmp_path / "run"), pytest.raises(BlockingIOError, match=message):
        train()


@pytest.mark.slow
def test_nan_stops_the_run_and_keeps_the_last_good_checkpoint(train, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(FloatingPointError) as raised:
        patch.setattr(run, "make_optimizer", rate_that_explodes)
        train(settings={"trainer.validation_every": 1, "model.heads": LOCAL})
    assert "at step 3" in str(raised.value) or "at step 2" in str(raised.value)
    assert "keeps the last good checkpoint" in str(raised.value)
    assert all(np.all(np.isfinite(value)) for value in weights(tmp_path / "run"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"trainer.strategy": "mirrored", "trainer.steps_per_execution": 2, "model.dropout": 0.1},
        {
            "trainer.mixed_bfloat16": True,
            "trainer.jit_compile": True,
            "optimizer.name": "adafactor",
            "model.heads": LOCAL,
        },
    ],
    ids=lambda settings: ",".join(settings),
)
def test_a_run_learns_and_stays_finite_with(train, tmp_path, settings):
    steps = {"trainer.steps": 16, "trainer.validation_every": 8}
    figures = train(settings={**settings, **steps})
    # Less than log(258), the loss for equal logits, which new weights exceed.
    assert figures["validation_nats_per_token"] < 5.5
    assert all(np.all(np.isfinite(value)) for value in weights(tmp_path / "run"))
