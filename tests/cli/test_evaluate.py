import json

import pytest

from tests.cli.checks import assert_one_line


@pytest.mark.slow
def test_a_run_is_scored_on_its_own_data_and_drawn(run, tiny_run, books, tmp_path):
    figures, picture = tmp_path / "figures.json", tmp_path / "context.png"
    drawn = ["--context", "stateful", "--plot", picture]
    status, output, _ = run("evaluate", "--model", tiny_run, "--json", figures, *drawn)
    scores = json.loads(figures.read_text())
    assert status == 0 and "scores on the test split of text_folder" in output
    assert f"bits per byte {scores['bits_per_byte']:.4f}" in " ".join(output.split())
    assert scores["bytes"] == sum(path.stat().st_size for path in (books / "test").iterdir())
    assert f"wrote {picture}" in output and picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_preset_is_scored_on_a_folder(run, tiny_run, books, tmp_path):
    figures = tmp_path / "figures.json"
    arguments = ["--model", tiny_run / "model", "--data", books, "--split", "train"]
    arguments += ["--sequence-length", 16, "--batch-size", 3]
    assert run("evaluate", *arguments, "--json", figures)[0] == 0
    scores = json.loads(figures.read_text())
    assert scores["documents"] == 3 and "is_chief" not in scores


@pytest.mark.parametrize(
    "arguments, parts",
    [
        (["--data", "no/such"], ["no/such", "no such folder"]),
        (["--plot", "a.png"], ["--plot needs --context stateful"]),
        (["--context", "stateful", "--plot", "a.txt"], ["--plot must end in .png", "a.txt"]),
        (["--sequence-length", 0], ["--sequence-length must be at least 1. Received: 0"]),
        (["--model", "model"], ["--data is missing"]),
    ],
)
def test_bad_arguments_give_one_line(run, tiny_run, monkeypatch, arguments, parts):
    monkeypatch.chdir(tiny_run)
    status, _, error = run("evaluate", "--model", tiny_run, *arguments)
    assert_one_line(status, error, *parts)
