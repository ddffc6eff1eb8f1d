import json

import keras
import numpy as np
import pytest

from rt_keras.callbacks.keep_checkpoints import KeepCheckpoints
from rt_keras.training import experiment


@pytest.fixture
def model(tiny_run):
    model = experiment.load_model(tiny_run)
    model.compile(optimizer=keras.optimizers.Adam())
    model.optimizer.build(model.trainable_variables)
    return model


@pytest.fixture
def checkpoints(model, tmp_path):
    checkpoints = KeepCheckpoints(tmp_path, preprocessor=model.preprocessor)
    checkpoints.set_model(model)
    return checkpoints


def set_to(model, step):
    """Makes a state that can be told from others."""
    model.optimizer.iterations.assign(step)
    table = model.backbone.token_embedding.embeddings
    table.assign(np.full(table.shape, step))


def value_of(model):
    return float(model.backbone.token_embedding.embeddings[0, 0])


def test_the_best_model_and_the_last_state_are_kept(checkpoints, model, tmp_path):
    for step, loss in ((10, 3.0), (20, 2.0), (30, 2.5)):
        set_to(model, step)
        checkpoints.on_epoch_end(step, {"val_loss": loss})
    assert value_of(experiment.load_model(tmp_path)) == 20
    assert json.loads((tmp_path / "progress.json").read_text()) == {
        "best_step": 20,
        "best_value": 2.0,
    }

    set_to(model, 0)
    again = KeepCheckpoints(tmp_path)
    assert again.restore(model) == 30 and value_of(model) == 30
    assert (again.best_step, again.best_value) == (20, 2.0)


def test_there_may_be_nothing_to_restore(model, tmp_path):
    assert KeepCheckpoints(tmp_path).restore(model) == 0


def test_a_loss_that_is_no_number_writes_nothing(checkpoints, model, tmp_path):
    checkpoints.on_epoch_end(0, {"val_loss": 3.0})
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    set_to(model, 20)
    with pytest.raises(FloatingPointError, match="val_loss is nan at step 20"):
        checkpoints.on_epoch_end(1, {"val_loss": float("nan")})
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    "name, damage, message",
    [
        ("progress.json", lambda old: old[: len(old) // 2], "progress.json is damaged: .* JSON"),
        ("progress.json", lambda old: b"{}", "progress.json is damaged: best_step and best_value"),
        ("last.weights.h5", lambda old: old[: len(old) // 2], "last.weights.h5 is damaged: its we"),
    ],
)
def test_a_damaged_checkpoint_is_named(checkpoints, model, tmp_path, name, damage, message):
    checkpoints.on_epoch_end(0, {"val_loss": 1.0})
    (tmp_path / name).write_bytes(damage((tmp_path / name).read_bytes()))
    with pytest.raises(ValueError, match=message):
        KeepCheckpoints(tmp_path).restore(model)
