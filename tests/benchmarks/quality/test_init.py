import functools
import json

import pytest

from rt_keras import cli
from rt_keras.benchmarks import quality
from tests.benchmarks import checks

SMALL = ["--length", 32, "--steps", 20, "--layers", 1, "--width", 16, "--batch", 4]


parse = functools.partial(checks.parse, quality)


@pytest.mark.parametrize(
    "options, message",
    [
        (["--seeds", 0, -1], "--seeds must be from 0 to 999999. Received: -1"),
        (["--steps", 30], "--steps must be a multiple of the number of tests .*, 20. Received: 30"),
        (["--test-lengths", 64, 3], "--test-lengths: --length must be at least 8 for recall. Rec"),
        (["--width", 100], "--width must be a multiple of 8. Received: 100"),
        (["--directory", "books"], "--directory needs the task text. Received: --tasks recall"),
        (["--plot", "a.txt"], "--plot must end in .png or .svg or .pdf. Received: a.txt"),
    ],
)
def test_options_out_of_range_are_refused_before_anything_runs(options, message):
    with pytest.raises(ValueError, match=message) as error:
        quality.main(parse(*options))
    assert "\n" not in str(error.value)


def test_what_is_not_given_follows_from_the_length_and_the_task():
    settings = quality.run_settings(parse(), "recall", "full", 0)
    assert [settings[name] for name in ("length", "keys", "clusters", "batch")] == [128, 8, 8, 16]
    settings = quality.run_settings(parse("--keys", 64), "text", "full", 0)
    assert [settings[name] for name in ("length", "keys", "clusters")] == [2048, 64, 16]


@pytest.fixture
def runs(monkeypatch):
    """The runs so far, as (task, kind, seed); they take no time."""
    made = []

    def train_alone(settings):
        made.append((settings["task"], settings["kind"], settings["seed"]))
        if settings["kind"] == "balanced":
            raise KeyboardInterrupt
        numbers = {"weights": 1, "keys_seen": 8.0, "seconds": 0.1, "peak_bytes": 10**6}
        scores = {"steps": [20], "loss": [1.0], "accuracy": [0.5], "at_lengths": []}
        words = {"settings": settings, "machine": "a machine", "groups": {}, "cluster_use": {}}
        return {**numbers, **scores, **words}

    monkeypatch.setattr(quality, "train_alone", train_alone)
    return made


def test_every_kind_is_trained_once_for_each_seed_and_drawn(runs, tmp_path, capsys):
    path = tmp_path / "a.svg"
    quality.main(parse("--kinds", "full", "local", "full", "--seeds", 1, 2, "--plot", path))
    assert runs == [("recall", kind, seed) for seed in (1, 2) for kind in ("full", "local")]
    shown = capsys.readouterr().out
    assert "seeds 1, 2" in shown and path.is_file() and f"wrote {path}" in shown


def test_a_stopped_table_goes_on(runs, tmp_path, capsys):
    path = tmp_path / "a.json"
    with pytest.raises(KeyboardInterrupt):
        quality.main(parse("--kinds", "full", "balanced", "local", "--json", path))
    assert [x["settings"]["kind"] for x in json.loads(path.read_text())["figures"]] == ["full"]
    runs.clear()
    quality.main(parse("--kinds", "full", "local", "--json", path))
    assert runs == [("recall", "local", 0)]
    assert f"full on recall, seed 0: already in {path}" in capsys.readouterr().err
    # Other settings are other runs. The file keeps both; the table shows those requested.
    result = quality.main(parse("--kinds", "full", "--steps", 40, "--json", path))
    assert len(result["figures"]) == 3 and "local" not in capsys.readouterr().out
    assert json.loads(path.read_text()) == result
    path.write_text('{"benchmark": "model"}')
    with pytest.raises(ValueError, match="--json must be a new file or one from this command"):
        quality.main(parse("--json", path))


@pytest.mark.weekly
def test_the_command_trains_in_a_process_of_its_own_and_goes_on(tmp_path, capsys):
    path = tmp_path / "a.json"
    command = ["benchmark", "quality", *SMALL, "--kinds", "local_and_nearest"]
    command = [str(part) for part in (*command, "--json", path)]
    assert cli.main(command) == 0
    (figure,) = json.loads(path.read_text())["figures"]
    assert len(figure["accuracy"]) == 20 and 0 <= figure["accuracy"][-1] <= 1
    # Chance is ln 64; twenty steps hardly change it.
    assert all(loss == pytest.approx(4.16, abs=0.3) for loss in figure["loss"])
    assert len(figure["cluster_use"]) == 4 and figure["seconds"] > 0 and figure["keys_seen"] > 1
    printed = capsys.readouterr()
    assert "step 20 of 20" in printed.err
    assert printed.out.splitlines()[-2].startswith("local and nearest")
    assert cli.main(command) == 0
    assert json.loads(path.read_text())["figures"] == [figure]
    assert "already in" in capsys.readouterr().err
