import json
import subprocess
import sys
from pathlib import Path

import pytest

from rt_keras import cli, files

GOLDEN = Path(__file__).parent / "golden"


def overrides(settings):
    return [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]


@pytest.fixture
def run(capsys):
    """Runs a command; returns its status, output and error output."""

    def run(*argv):
        status = cli.main([str(argument) for argument in argv])
        return status, *capsys.readouterr()

    return run


def assert_one_line(status, error, *parts):
    """The last line says what is wrong; before it there is at most progress."""
    last = error.splitlines()[-1]
    assert status == 1
    assert last.startswith("rt-keras: error: ") and "Traceback" not in error
    for part in parts:
        assert part in last


COMMANDS = [
    ["configs"],
    ["train"],
    ["evaluate"],
    ["generate"],
    ["export"],
    ["quickstart"],
    ["benchmark"],
    ["benchmark", "attention"],
    ["benchmark", "model"],
    ["benchmark", "decode"],
    ["benchmark", "recall"],
    ["benchmark", "compare"],
    ["benchmark", "plot"],
]


@pytest.mark.parametrize("command", [[], *COMMANDS], ids=" ".join)
def test_every_help_has_an_example(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main([*command, "--help"])
    assert stopped.value.code == 0
    help_text = capsys.readouterr().out
    assert f"example: rt-keras {' '.join(command)}" in " ".join(help_text.split())


def test_configs_lists_every_file_with_its_summary(run, tmp_path):
    status, output, _ = run("configs", "--json", tmp_path / "configs.json")
    assert status == 0
    summaries = json.loads((tmp_path / "configs.json").read_text())
    assert {"books", "quickstart"} <= set(summaries)
    assert all(name in output and summary in output for name, summary in summaries.items())


def test_help_and_configs_import_nothing_heavy():
    script = (
        "import sys; from rt_keras import cli; cli.main(['configs']);"
        "print(sorted({'tensorflow', 'keras', 'official'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.stdout.splitlines()[-1] == "[]", result.stderr


def test_train_evaluate_generate_export(run, tiny_settings, books, tmp_path):
    folder, figures = tmp_path / "run", tmp_path / "figures.json"
    train = ["train", "--config", "books", *overrides(tiny_settings), "--output", folder]

    status, output, _ = run(*train, "--json", figures)
    assert status == 0 and "4 steps" in output and "nats per token" in output
    assert json.loads(figures.read_text())["steps"] == 4

    status, _, error = run(*train)
    assert_one_line(status, error, "already holds a run", "--resume", "--overwrite")
    assert run("train", "--resume", "--output", folder)[0] == 0

    status, output, _ = run("evaluate", "--model", folder, "--json", figures)
    scores = json.loads(figures.read_text())
    assert status == 0 and f"{scores['bits_per_byte']:.4f} bits per byte" in output
    assert scores["bytes"] == sum(path.stat().st_size for path in (books / "test").iterdir())
    status, _, _ = run(
        *("evaluate", "--model", folder / "model", "--data", books, "--split", "train"),
        *("--json", figures),
    )
    assert status == 0 and json.loads(figures.read_text())["documents"] == 3

    generate = ["generate", "--model", folder, "--prompt", "café ", "--max-length", 20]
    texts = []
    for _ in range(2):
        status, output, _ = run(*generate, "--json", figures)
        texts.append(json.loads(figures.read_text())["text"])
        assert status == 0 and texts[-1] in output
    assert texts[0] == texts[1] and texts[0].startswith("café ")
    assert run(*generate, "--stream")[1].endswith(f"{texts[0]}\n")
    two = ["generate", "--model", folder, "--prompt", "café ", "ab", "--sampler", "greedy"]
    status, output, _ = run(*two, "--max-length", 12, "--json", figures)
    assert status == 0 and [text[:2] for text in json.loads(figures.read_text())["texts"]] == [
        "ca",
        "ab",
    ]

    for version in ("1", "2"):
        status, output, _ = run("export", "--model", folder, "--output", tmp_path / "exported")
        assert status == 0 and str(tmp_path / "exported" / version) in output
        assert (tmp_path / "exported" / version / "saved_model.pb").exists()
    status, _, error = run("export", "--model", folder, "--output", tmp_path / "exported" / "1")
    assert_one_line(status, error, "already holds something")

    analyze = ["analyze", "causality", "--model", folder, "--sequences", 1, "--positions", 2]
    status, output, _ = run(*analyze, "--json", figures)
    assert status == 0 and "0.00% of" in output
    assert json.loads(figures.read_text())["share_changed"] == 0.0


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


def test_other_mistakes_give_one_line(run, tiny_run, books, tmp_path):
    for argv, parts in (
        (["train", "--output", tmp_path / "run"], ["--config is missing"]),
        (["train", "--config", "bokos", "--output", tmp_path / "run"], ["'bokos'", "books"]),
        (["train", "--resume", "--config", "books", "--output", tmp_path], ["no run to resume"]),
        (["evaluate", "--model", tmp_path], ["neither a run nor a preset"]),
        (["evaluate", "--model", tiny_run / "model"], ["--data is missing"]),
        (["evaluate", "--model", tiny_run, "--data", "no/such"], ["no/such", "no such folder"]),
        (["evaluate", "--model", tiny_run, "--data", "pg91"], ["'pg91'", "pg19"]),
        (["evaluate", "--model", tiny_run, "--split", "dev"], ["'dev'", "train, validation, test"]),
        (["generate", "--model", tiny_run, "--prompt", "a", "--max-length", 0], ["--max-length"]),
        (["generate", "--model", tiny_run, "--prompt", "a", "--temperature", 0], ["--temperature"]),
        (["generate", "--model", tiny_run], ["--prompt is missing"]),
        (
            ["generate", "--model", tiny_run, "--prompt", "a", "--top-p", 0.5],
            ["--top-p is 0.5", "sampler random has none"],
        ),
        (
            ["generate", "--model", tiny_run, "--prompt", "a", "--sampler", "top_p", "--top-p", 2],
            ["--top-p is 2.0", "at most 1"],
        ),
        (
            ["generate", "--model", tiny_run, "--prompt", "a", "b", "--stream"],
            ["--stream is for one --prompt"],
        ),
        (
            ["generate", "--model", tiny_run, "--prompt", "a", "--sampler", "beam", "--stream"],
            ["BeamSampler", "cannot be streamed"],
        ),
        (["analyze", "causality", "--model", tiny_run, "--positions", 0], ["num_positions is 0"]),
        (["quickstart", "--output", tiny_run], ["already holds something"]),
    ):
        status, _, error = run(*argv)
        assert_one_line(status, error, *parts)


def test_ctrl_c_gives_one_line(run, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "config_folder", interrupted)
    assert run("configs") == (130, "", "rt-keras: interrupted\n")


def test_python_m_rt_keras_is_the_command_and_fails_without_a_trace(tmp_path):
    command = [sys.executable, "-m", "rt_keras", "evaluate", "--model", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 1 and "neither a run nor a preset" in result.stderr
    assert "Traceback" not in result.stderr


def test_convert_writes_a_preset_or_one_line(run, tmp_path):
    case = json.loads((GOLDEN / "image_routing1d" / "case.json").read_text())
    hparams = tmp_path / "hparams.json"
    hparams.write_text(json.dumps(case["hparams"]))
    output, figures = tmp_path / "preset", tmp_path / "figures.json"
    command = ["convert", "t2t", "--hparams", hparams, "--output", output]
    command += ["--image-shape", *case["image"], "--num-classes", 10, "--json", figures]
    status, _, error = run(*command, "--checkpoint", tmp_path / "missing")
    assert_one_line(status, error, "there is no checkpoint")
    assert not output.exists() and not figures.exists()
    status, _, _ = run(*command, "--checkpoint", GOLDEN / "image_routing1d" / "model.ckpt-1")
    assert status == 0
    assert json.loads(figures.read_text())["model"] == "RoutingTransformerImageLM"
    assert (output / "task.json").is_file()
