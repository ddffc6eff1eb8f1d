import json
import shutil

import pytest

from rt_keras import models, serving
from rt_keras.cli import quickstart
from rt_keras.serving import score
from rt_keras.training import config
from rt_keras.training import run as training
from tests.cli.checks import assert_one_line


@pytest.mark.slow
def test_a_trained_model_is_scored_sampled_and_exported_and_its_export_compared(
    run, tiny_settings, tiny_run, tmp_path, monkeypatch
):
    # A run that has finished.
    monkeypatch.setattr(config, "load_config", lambda name: config.make_config(tiny_settings))
    monkeypatch.setattr(
        training, "train", lambda _, folder: shutil.copytree(tiny_run, folder) and {}
    )
    folder, figures = tmp_path / "quickstart", tmp_path / "figures.json"
    status, output, error = run("quickstart", "--output", folder, "--json", figures)
    assert status == 0, error
    found = json.loads(figures.read_text())
    assert found["export_agrees"] and found["sample"] in output
    assert found["bits_per_byte"] == found["evaluation"]["bits_per_byte"]
    assert f"gzip -9 {found['gzip_bits_per_byte']:.4f} bits per byte" in output
    exported = folder / "saved_model" / "1"
    assert (exported / "saved_model.pb").is_file()

    # An export with other scores, and nothing else again.
    monkeypatch.setattr(serving, "export_saved_model", lambda *_: exported)
    monkeypatch.setattr(score, "score_in_new_process", lambda path, ids: [[0.0] * len(ids[0])])
    monkeypatch.setattr(quickstart, "evaluate", lambda *_: {"bits_per_byte": 1.0})
    monkeypatch.setattr(models.RoutingTransformerCausalLM, "generate", lambda *_, **__: "def")
    status, _, error = run("quickstart", "--output", tmp_path / "again")
    assert_one_line(status, error, "the exported model's scores in a new process differ")


def test_a_folder_that_holds_something_is_refused(run, tiny_run):
    status, _, error = run("quickstart", "--output", tiny_run)
    assert_one_line(status, error, "already exists; name a new")
