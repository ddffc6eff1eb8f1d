import json
import shutil

import pytest

from tests.cli.checks import assert_one_line


@pytest.fixture
def tiny_quickstart(tiny_settings, monkeypatch):
    """Replaces the configuration of the quick start by one that trains in seconds."""
    from rt_keras.training import config

    monkeypatch.setattr(config, "load_config", lambda name: config.make_config(tiny_settings))


@pytest.mark.end_to_end
def test_a_model_is_trained_scored_sampled_and_exported(run, tiny_quickstart, tmp_path):
    folder, figures = tmp_path / "quickstart", tmp_path / "figures.json"
    status, output, error = run("quickstart", "--output", folder, "--json", figures)
    assert status == 0, error
    found = json.loads(figures.read_text())
    assert found["export_agrees"] and found["sample"] in output
    assert found["bits_per_byte"] == found["evaluation"]["bits_per_byte"]
    assert f"gzip -9 {found['gzip_bits_per_byte']:.4f} bits per byte" in output
    assert (folder / "saved_model" / "1" / "saved_model.pb").is_file()


@pytest.mark.end_to_end
def test_an_export_with_other_scores_is_an_error(
    run, tiny_quickstart, tiny_run, tmp_path, monkeypatch
):
    from rt_keras.serving import score
    from rt_keras.training import run as training

    # A run with these settings that has finished.
    monkeypatch.setattr(
        training, "train", lambda _, folder: shutil.copytree(tiny_run, folder) and {}
    )
    monkeypatch.setattr(score, "score_in_new_process", lambda path, ids: [[0.0] * len(ids[0])])
    status, _, error = run("quickstart", "--output", tmp_path / "quickstart")
    assert_one_line(status, error, "the exported model's scores in a new process differ")


def test_a_folder_that_holds_something_is_refused(run, tiny_run):
    status, _, error = run("quickstart", "--output", tiny_run)
    assert_one_line(status, error, "already exists; name a new")
