import keras
import numpy as np
import pytest

from rt_keras import files
from rt_keras.callbacks.keep_best import KeepBest
from rt_keras.training import experiment


@pytest.fixture
def model(tiny_run):
    model = experiment.load_model(tiny_run)
    model.compile(optimizer=keras.optimizers.Adam())
    model.optimizer.build(model.trainable_variables)
    return model


@pytest.fixture
def best(model, tmp_path):
    best = KeepBest(tmp_path / "model", preprocessor=model.preprocessor)
    best.set_model(model)
    return best


def end_epoch(best, step, loss):
    """Ends an epoch with a model that differs from others."""
    best.model.optimizer.iterations.assign(step)
    table = best.model.backbone.token_embedding.embeddings
    table.assign(np.full(table.shape, step))
    best.on_epoch_end(step, {"val_loss": loss})


def value_in(folder):
    return float(experiment.load_model(folder).backbone.token_embedding.embeddings[0, 0])


def test_the_best_model_is_kept(best, tmp_path):
    for step, loss in ((10, 3.0), (20, 2.0), (30, 2.5)):
        end_epoch(best, step, loss)
    assert value_in(tmp_path) == 20 and best.values == {"step": 20, "value": 2.0}
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_loss_that_is_no_number_writes_nothing(best, tmp_path):
    with pytest.raises(FloatingPointError, match="val_loss is nan at step 20"):
        end_epoch(best, 20, float("nan"))
    assert not list(tmp_path.iterdir())


def test_a_full_disk_keeps_the_model_before(best, tmp_path, monkeypatch):
    end_epoch(best, 10, 3.0)
    monkeypatch.setattr(files.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 9}))
    with pytest.raises(OSError, match="no space left: .* bytes are needed, 9 free"):
        end_epoch(best, 20, 1.0)
    assert value_in(tmp_path) == 10 and best.values == {"step": 10, "value": 3.0}
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
