import argparse
import json
import subprocess
import sys

import pytest

from rt_keras import cli
from rt_keras.benchmarks import quality

SMALL = ["--length", 32, "--steps", 20, "--layers", 1, "--width", 16, "--batch", 4]


def parse(*given):
    parser = argparse.ArgumentParser()
    quality.add_arguments(parser)
    parser.add_argument("--json")
    return parser.parse_args([str(option) for option in given])


@pytest.mark.parametrize(
    "options, message",
    [
        (["--seeds", 0, -1], "--seeds must be from 0 to 999999. Received: -1"),
        (["--steps", 30], "--steps must be a multiple of the number of tests .*, 20. Received: 30"),
        (["--steps", 0], "--steps must be a multiple of the number of tests .*, 20. Received: 0"),
        (["--length", 3], "--length must be at least 8 for recall. Received: 3"),
        (["--test-lengths", 64, 3], "--test-lengths: --length must be at least 8 for recall. Rec"),
        (["--keys", 0], "--keys must be at least 1. Received: 0"),
        (["--clusters", 0], "--clusters must be at least 1. Received: 0"),
        (["--batch", 0], "--batch must be at least 1. Received: 0"),
        (["--layers", 0], "--layers must be at least 1. Received: 0"),
        (["--width", 100], "--width must be a multiple of 8. Received: 100"),
        (["--learning-rate", 0], "--learning-rate must be above 0. Received: 0.0"),
        (["--directory", "books"], "--directory needs the task text. Received: --tasks recall"),
        (["--plot", "a.txt"], "--plot must end in .png or .svg or .pdf. Received: a.txt"),
        (["--plot", "/dev/null/a.png"], "--plot must be a file that can be written"),
    ],
)
def test_options_out_of_range_are_refused_before_anything_runs(options, message):
    with pytest.raises(ValueError, match=message) as error:
        quality.main(parse(*options))
    assert "\n" not in str(error.value)


def test_what_is_not_given_follows_from_the_length():
    settings = quality.run_settings(parse(), "recall", "full", 0)
    assert [settings[name] for name in ("length", "keys", "clusters", "batch")] == [128, 8, 8, 16]
    settings = quality.run_settings(parse("--length", 8192), "text", "full", 0)
    assert [settings[name] for name in ("keys", "clusters", "batch")] == [512, 8, 4]
    settings = quality.run_settings(parse("--keys", 64), "text", "full", 0)
    assert [settings[name] for name in ("length", "keys", "clusters")] == [2048, 64, 16]


def test_only_texts_depend_on_the_directory():
    args = parse("--tasks", "text", "recall", "--directory", "books")
    found = [quality.run_settings(args, task, "full", 0)["directory"] for task in args.tasks]
    assert found == ["books", None]


@pytest.fixture
def runs(monkeypatch):
    """The runs so far, as (task, kind, seed); they take no time."""
    made = []

    def train_alone(settings):
        made.append((settings["task"], settings["kind"], settings["seed"]))
        if settings["kind"] == "hashed":
            raise KeyboardInterrupt
        return {
            "settings": settings,
            "machine": "a machine",
            "weights": 1,
            "keys_seen": 8.0,
            "steps": [20],
            "loss": [1.0],
            "accuracy": [0.5],
            "groups": {},
            "at_lengths": [],
            "cluster_use": {},
            "seconds": 0.1,
            "peak_bytes": 10**6,
        }

    monkeypatch.setattr(quality, "train_alone", train_alone)
    return made


def test_every_kind_is_trained_once_for_each_seed(runs, capsys):
    quality.main(parse("--kinds", "full", "local", "full", "--seeds", 1, 2))
    assert runs == [("recall", kind, seed) for seed in (1, 2) for kind in ("full", "local")]
    assert "seeds 1, 2" in capsys.readouterr().out


def test_a_stopped_table_goes_on(runs, tmp_path, capsys):
    path = tmp_path / "a.json"
    with pytest.raises(KeyboardInterrupt):
        quality.main(parse("--kinds", "full", "hashed", "local", "--json", path))
    assert [x["settings"]["kind"] for x in json.loads(path.read_text())["figures"]] == ["full"]
    runs.clear()
    quality.main(parse("--kinds", "full", "local", "--json", path))
    assert runs == [("recall", "local", 0)]
    assert f"full on recall, seed 0: already in {path}" in capsys.readouterr().err
    # Other settings are other runs. The file keeps both; the table shows those requested.
    result = quality.main(parse("--kinds", "full", "--steps", 40, "--json", path))
    assert len(result["figures"]) == 3
    assert "local" not in capsys.readouterr().out
    assert json.loads(path.read_text()) == result


def test_a_file_of_something_else_is_not_written_over(runs, tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"benchmark": "model"}')
    with pytest.raises(ValueError, match="--json must be a new file or one from this command"):
        quality.main(parse("--json", path))
    assert not runs


def test_the_picture_is_drawn(runs, tmp_path, capsys):
    path = tmp_path / "a.svg"
    quality.main(parse("--kinds", "full", "--plot", path))
    assert path.is_file() and f"wrote {path}" in capsys.readouterr().out


def test_the_command_imports_nothing_heavy():
    script = "import sys; from rt_keras.benchmarks import quality\n"
    script += "print(sorted({'tensorflow', 'keras', 'numpy'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.stdout == "[]\n", result.stderr


@pytest.mark.end_to_end
def test_command_trains_and_goes_on(tmp_path, capsys):
    path = tmp_path / "a.json"
    command = ["benchmark", "quality", *SMALL, "--kinds", "local_and_nearest", "frozen_centroids"]
    command += ["--test-lengths", 64]
    command = [str(part) for part in (*command, "--json", path, "--plot", tmp_path / "a.png")]
    assert cli.main(command) == 0
    figures = json.loads(path.read_text())["figures"]
    assert [figure["settings"]["kind"] for figure in figures] == command[-8:-6]
    for figure in figures:
        assert len(figure["accuracy"]) == 20 and 0 <= figure["accuracy"][-1] <= 1
        assert [found["length"] for found in figure["at_lengths"]] == [64]
    assert len(figures[0]["cluster_use"]) == 4 and not figures[1]["cluster_use"]
    printed = capsys.readouterr()
    assert "step 20 of 20" in printed.err
    assert printed.out.splitlines()[-3].startswith("frozen centroids")
    assert cli.main(command) == 0
    assert json.loads(path.read_text())["figures"] == figures
    assert "already in" in capsys.readouterr().err
