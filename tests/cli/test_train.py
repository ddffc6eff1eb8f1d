import json

import pytest

from tests.cli.checks import assert_one_line, overrides


def test_a_run_is_trained_refused_and_resumed(run, tiny_settings, tmp_path):
    folder, figures = tmp_path / "run", tmp_path / "figures.json"
    train = ["train", "--config", "books", *overrides(tiny_settings), "--output", folder]
    status, output, _ = run(*train, "--json", figures)
    assert status == 0 and "4 steps" in output and "nats per token" in output
    assert json.loads(figures.read_text())["steps"] == 4

    status, _, error = run(*train)
    assert_one_line(status, error, "already holds a run", "--resume", "--overwrite")
    assert run("train", "--resume", "--output", folder)[0] == 0


@pytest.mark.parametrize(
    "settings, parts",
    [
        ({"optimizer.lerning_rate": 1}, ["lerning_rate", "optimizer.learning_rate"]),
        ({"optimizer.learning_rate": "fast"}, ["optimizer.learning_rate", "'fast'", "number"]),
        ({"model.hidden_dim": 15}, ["model.hidden_dim is 15", "multiple of 2"]),
        ({"model.routing.window_size": 64}, ["model.routing.window_size is 64", "only 32"]),
        ({"data.sequence_length": 8}, ["data.sequence_length only 8", "one window"]),
        ({"model.routing.num_clusters": 0}, ["model.routing.num_clusters is 0", "at least 1"]),
        ({"data.directory": "no/such/folder"}, ["no/such/folder", "does not exist"]),
        ({"optimizer.learning_rate": 1e30}, ["the loss is nan at step", "last good checkpoint"]),
    ],
)
def test_bad_settings_give_one_line(run, tiny_settings, tmp_path, settings, parts):
    given = overrides({**tiny_settings, **settings})
    status, _, error = run("train", "--config", "books", *given, "--output", tmp_path / "run")
    assert_one_line(status, error, *parts)


def test_an_empty_folder_gives_one_line(run, tiny_settings, tmp_path):
    (tmp_path / "empty").mkdir()
    given = overrides({**tiny_settings, "data.directory": tmp_path / "empty"})
    status, _, error = run("train", "--config", "books", *given, "--output", tmp_path / "run")
    assert_one_line(status, error, "empty", "holds no .txt files")


@pytest.mark.parametrize(
    "arguments, parts",
    [
        ([], ["--config is missing"]),
        (["--config", "bokos"], ["'bokos'", "books"]),
        (["--resume", "--config", "books"], ["no run to resume"]),
    ],
)
def test_bad_arguments_give_one_line(run, tmp_path, arguments, parts):
    status, _, error = run("train", *arguments, "--output", tmp_path)
    assert_one_line(status, error, *parts)
