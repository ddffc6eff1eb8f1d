"""What `rt-keras quickstart` refuses; `.ci/run` runs it whole."""

import shutil

import pytest

from rt_keras import models
from rt_keras.cli import quickstart
from rt_keras.serving import saved_model, score
from rt_keras.training import config
from rt_keras.training import run as training
from tests.cli.checks import assert_one_line


@pytest.mark.slow
def test_an_export_with_other_scores_is_an_error(
    run, tiny_settings, tiny_run, tmp_path, monkeypatch
):
    # A run that has finished.
    monkeypatch.setattr(config, "load_config", lambda name: config.make_config(tiny_settings))
    monkeypatch.setattr(
        training, "train", lambda _, folder: shutil.copytree(tiny_run, folder) and {}
    )
    monkeypatch.setattr(quickstart, "evaluate", lambda *_: {"bits_per_byte": 1.0})
    monkeypatch.setattr(models.RoutingTransformerCausalLM, "generate", lambda *_, **__: "def")
    monkeypatch.setattr(saved_model, "export_saved_model", lambda *_: tmp_path / "exported")
    monkeypatch.setattr(score, "score_in_new_process", lambda path, ids: [[0.0] * len(ids[0])])
    status, output, error = run("quickstart", "--output", tmp_path / "quickstart")
    assert_one_line(status, error, "the exported model's scores in a new process differ")
    assert "gzip -9 " in output and "a sample:\ndef\n" in output
