import csv
import errno
import math
from pathlib import Path

import keras
import numpy as np
import pytest

from rt_keras.training import config as config_lib
from rt_keras.training import experiment, run


@pytest.fixture
def train(tiny_settings, tmp_path):
    """Trains a tiny model in `tmp_path / "run"`, or in another folder."""

    def train(output=tmp_path / "run", settings=None, **options):
        config = config_lib.make_config({**tiny_settings, **(settings or {})})
        return run.train(config, output, verbose=0, **options)

    return train


def weights(folder):
    """All weights of the best model but the members drawn at random, which start nothing here."""
    model = experiment.load_model(folder)
    return [w.numpy() for w in model.weights if "member_samples" not in w.path]


def assert_equal_weights(one, other):
    for a, b in zip(weights(one), weights(other), strict=True):
        np.testing.assert_array_equal(a, b)


def rate_that_explodes(config):
    """An optimizer that is fine for two steps."""
    rate = keras.optimizers.schedules.PiecewiseConstantDecay([1], [1e-3, 1e30])
    return keras.optimizers.Adam(rate)


def test_a_run_leaves_what_it_promises(tiny_run):
    names = {path.name for path in tiny_run.iterdir()}
    assert names == {
        *("config.yaml", "last.weights.h5", "progress.json", "log.csv", "model", "tensorboard"),
    }
    assert config_lib.load_config(tiny_run / "config.yaml").trainer.steps == 4
    with open(tiny_run / "log.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2
    assert float(rows[1]["val_nats_per_token"]) < float(rows[0]["val_nats_per_token"]) < 6
    assert 0 < float(rows[0]["routing_0_entropy"]) <= 1
    assert len(list(tiny_run.glob("tensorboard/*/events*"))) == 2


@pytest.mark.end_to_end
def test_heads_are_watched_if_asked_for(train, tmp_path):
    train(settings={"trainer.watch_heads": True})
    with open(tmp_path / "run" / "log.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        assert 0 < float(row["divergence_0_LocalHeads_RoutingHeads"]) < math.log(2)
        assert 0 <= float(row["routing_0_stable"]) <= 1
    (events,) = tmp_path.glob("run/tensorboard/train/events*")
    assert b"epoch_routing_0_stable" in events.read_bytes()


@pytest.mark.end_to_end
def test_a_seed_makes_two_runs_equal(train, tiny_run, tmp_path):
    train()
    assert_equal_weights(tmp_path / "run", tiny_run)
    train(tmp_path / "other", {"trainer.seed": 2})
    assert not np.array_equal(weights(tmp_path / "other")[0], weights(tiny_run)[0])


def interrupt(epoch, logs):
    if epoch == 1:
        raise KeyboardInterrupt


@pytest.mark.end_to_end
def test_a_resumed_run_is_equal_to_one_that_was_not_interrupted(
    train, tiny_run, tmp_path, monkeypatch
):
    interrupter = keras.callbacks.LambdaCallback(on_epoch_begin=interrupt)
    callbacks = run._callbacks
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(run, "_callbacks", lambda *given: [*callbacks(*given), interrupter])
        train()
    assert train(resume=True)["best_step"] == 4
    assert_equal_weights(tmp_path / "run", tiny_run)
    log, whole = ((folder / "log.csv").read_text() for folder in (tmp_path / "run", tiny_run))
    assert log == whole


def test_a_finished_run_says_so_and_does_nothing(tiny_settings, tiny_run, capsys, monkeypatch):
    log = (tiny_run / "log.csv").read_bytes()
    monkeypatch.setattr(run, "_datasets", None)
    figures = run.train(config_lib.make_config(tiny_settings), tiny_run, resume=True)
    assert figures["best_step"] == 4
    assert figures["new_steps"] == figures["seconds"] == figures["tokens_per_second"] == 0
    assert "nothing left to train" in capsys.readouterr().out
    assert (tiny_run / "log.csv").read_bytes() == log


def test_a_folder_with_a_run_is_refused(train, tiny_run, tmp_path):
    before = (tiny_run / "last.weights.h5").read_bytes()
    with pytest.raises(FileExistsError, match="already holds a run; --resume .* --overwrite"):
        train(tiny_run)
    assert (tiny_run / "last.weights.h5").read_bytes() == before
    with pytest.raises(FileNotFoundError, match="holds no run to resume"):
        train(resume=True)
    with pytest.raises(ValueError, match="exclude each other"):
        train(tiny_run, resume=True, overwrite=True)
    with pytest.raises(ValueError, match="differs from that of the run"):
        train(tiny_run, {"optimizer.learning_rate": 1e-4}, resume=True)


@pytest.mark.end_to_end
def test_overwrite_deletes_the_run_and_nothing_else(train, tmp_path):
    folder = tmp_path / "run"
    (folder / "model").mkdir(parents=True)
    for name in ("config.yaml", "notes.txt", "model/old"):
        (folder / name).write_text("mine")
    train(overwrite=True)
    assert (folder / "notes.txt").read_text() == "mine"
    assert not (folder / "model" / "old").exists()


@pytest.mark.end_to_end
def test_nan_stops_the_run_and_keeps_the_last_good_checkpoint(train, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(FloatingPointError) as raised:
        patch.setattr(experiment, "make_optimizer", rate_that_explodes)
        train(settings={"trainer.validation_every": 1, "model.routing.num_heads": 0})
    assert "at step 3" in str(raised.value) or "at step 2" in str(raised.value)
    assert "keeps the last good checkpoint" in str(raised.value)
    assert all(np.all(np.isfinite(value)) for value in weights(tmp_path / "run"))


@pytest.mark.end_to_end
def test_a_full_disk_leaves_the_last_checkpoint(train, tmp_path, tiny_run, monkeypatch):
    save_weights, folder = keras.Model.save_weights, tmp_path / "run"

    def fail_once_there_is_a_checkpoint(self, path, *arguments, **options):
        if (folder / "last.weights.h5").exists():
            Path(path).write_bytes(b"half of the weights")
            raise OSError(errno.ENOSPC, "No space left on device")
        save_weights(self, path, *arguments, **options)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(keras.Model, "save_weights", fail_once_there_is_a_checkpoint)
        train()
    train(resume=True)
    assert_equal_weights(folder, tiny_run)


@pytest.mark.parametrize(
    "settings, error, message",
    [
        (
            {"data.directory": "no/such/folder"},
            FileNotFoundError,
            "directory must exist. Received: .*no/such/folder",
        ),
        ({"data.name": "python_source"}, ValueError, "only text_folder, .* read a folder"),
    ],
)
def test_text_that_is_not_there_is_named_and_starts_no_run(
    train, tmp_path, settings, error, message
):
    with pytest.raises(error, match=message):
        train(settings=settings)
    assert not (tmp_path / "run").exists()


def test_a_missing_split_is_named(train, tmp_path):
    (tmp_path / "text" / "train").mkdir(parents=True)
    (tmp_path / "text" / "train" / "1.txt").write_text("all there is")
    with pytest.raises(ValueError, match="split must be one of train"):
        train(settings={"data.directory": str(tmp_path / "text")})


def test_text_that_is_not_utf8_is_named_for_a_tokenizer_that_needs_it(
    train, tmp_path, word_piece_vocabulary
):
    (tmp_path / "vocabulary.txt").write_text("\n".join(word_piece_vocabulary))
    for split in ("train", "validation"):
        (tmp_path / "text" / split).mkdir(parents=True)
        (tmp_path / "text" / split / "1.txt").write_bytes(b"caf\xe9")
    settings = {
        "data.directory": str(tmp_path / "text"),
        "tokenizer.name": "word_piece",
        "tokenizer.vocabulary": str(tmp_path / "vocabulary.txt"),
    }
    with pytest.raises(ValueError, match="1.txt is not UTF-8 text"):
        train(settings=settings)


@pytest.mark.end_to_end
@pytest.mark.parametrize(
    "settings",
    [
        {
            "trainer.strategy": "mirrored",
            "trainer.steps_per_execution": 2,
            "trainer.watch_heads": True,
        },
        {"trainer.mixed_bfloat16": True, "optimizer.name": "adafactor", "model.dropout": 0.1},
        {"trainer.jit_compile": True, "model.routing.num_heads": 0, "optimizer.name": "adamw"},
    ],
    ids=lambda settings: ",".join(settings),
)
def test_other_ways_to_train(train, tmp_path, settings):
    steps = {"trainer.steps": 16, "trainer.validation_every": 8}
    figures = train(settings={**settings, **steps})
    # Less than all tokens alike, log(258), which new weights are above.
    assert figures["validation_nats_per_token"] < 5.5
    assert all(np.all(np.isfinite(value)) for value in weights(tmp_path / "run"))
