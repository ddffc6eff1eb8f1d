import importlib
import json
import shlex
from pathlib import Path

import pytest

from rt_keras import cli
from rt_keras.benchmarks import compare
from rt_keras.training.config import load_config
from tests.benchmarks.checks import parse

PAGES = Path(__file__).parents[2] / "docs" / "benchmarks"

TINY = """
model:
  num_layers: 1
  hidden_dim: 16
  heads: [{class: LocalHeads, num_heads: 2, block_size: 8}]
  num_lower_layers: 0
data: {sequence_length: 64, batch_size: 2}
schedule: {warmup_steps: 1}
trainer: {jit_compile: false}
"""


def test_changes_of_one_configuration_stand_above_those_of_all():
    args = parse(compare, "a/b.yaml", output="out", steps=20, set="model.num_layers=3")
    found = compare.settings_of(args, "a/b.yaml:model.num_layers=4", 1)
    assert (found["name"], found["config"]) == ("b:model.num_layers=4", "a/b.yaml")
    layers = [f"model.num_layers={number}" for number in (3, 4)]
    steps = ["trainer.steps=20", "trainer.validation_every=20"]
    assert found["set"] == [*steps, *layers, "trainer.seed=1"]


def figure(name, seed, bits, speed):
    settings, formats = {"name": name, "seed": seed}, {"bits_per_byte": ".2f"}
    scores = {"bits_per_byte": bits, "bytes": 9}
    more = {"formats": formats, "parameters": 1000, "tokens_per_second": speed}
    return {"settings": settings, "scores": scores, **more}


def test_a_row_has_means_and_deviations_over_seeds():
    figures = [figure("a", 0, 1.0, 1e4), figure("b", 0, 2.0, None), figure("a", 1, 3.0, 3e4)]
    assert compare.table(figures).splitlines() == [
        "| configuration | seeds | bits per byte | parameters | tokens/s |",
        "| --- | --- | --- | --- | --- |",
        "| a | 2 | 2.00 ± 1.41 | 1,000 | 20,000 ± 14,142 |",
        "| b | 1 | 2.00 | 1,000 |  |",
    ]


def test_the_commands_on_the_pages_are_complete_and_name_configurations():
    pages = [path.read_text().replace("\\\n", "") for path in PAGES.glob("*.md")]
    lines = [line for page in pages for line in page.splitlines()]
    commands = [shlex.split(line)[2:] for line in lines if line.startswith("rt-keras benchmark ")]
    assert len(commands) > 15
    for name, *words in commands:
        args = parse(importlib.import_module(f"rt_keras.benchmarks.{name}"), *words)
        for text in getattr(args, "configs", ()):
            settings = compare.settings_of(args, text, seed=0)
            load_config(settings["config"], settings["set"])


@pytest.mark.slow
def test_configurations_are_trained_scored_and_tabulated_and_go_on(tmp_path, books, capfd):
    config, out = tmp_path / "tiny.yaml", tmp_path / "out"
    config.write_text(f"base: books\n{TINY}")
    names = [str(config), f"{config}:model.heads[0].block_size=4"]
    command = ["benchmark", "compare", *names, "--set", f"data.directory={books}", "--steps", "2"]
    command += ["--set", f"data.data_dir={tmp_path / 'prepared'}", "--output", str(out)]
    assert cli.main(command) == 0, capfd.readouterr().err
    rows = (out / "table.md").read_text().splitlines()
    assert [row.split(" | ")[0] for row in rows[2:]] == [
        "| tiny",
        "| tiny:model.heads[0].block_size=4",
    ]
    first = json.loads((out / "figures.json").read_text())["figures"]
    assert all(figure["scores"]["bits_per_byte"] > 0 for figure in first)
    # Trained runs are scored again.
    assert cli.main(command) == 0
    second = json.loads((out / "figures.json").read_text())["figures"]
    assert [x["scores"] for x in second] == [x["scores"] for x in first]
    assert second[0]["tokens_per_second"] is None
