import json
import math

import pytest

from tests.cli.checks import assert_one_line
from tests.models.adapted.llama_folder import write_llama


@pytest.mark.slow
def test_a_causal_model_sees_nothing_of_its_future(run, tiny_run, tmp_path):
    figures = tmp_path / "figures.json"
    analyze = ["analyze", "causality", "--model", tiny_run, "--sequences", 1, "--positions", 2]
    status, output, _ = run(*analyze, "--json", figures)
    assert status == 0 and "0.00% of" in output
    assert json.loads(figures.read_text())["share_changed"] == 0.0


@pytest.mark.slow
def test_heads_are_compared_and_drawn(run, tiny_run, tmp_path):
    figures, plot = tmp_path / "figures.json", tmp_path / "heads.png"
    analyze = ["analyze", "heads", "--model", tiny_run, "--sequences", 2]
    status, output, _ = run(*analyze, "--json", figures, "--plot", plot, "--heads", "0.1")
    assert status == 0 and "2 sequences of the test split of text_folder" in output
    assert f"wrote {plot}" in output and plot.read_bytes().startswith(b"\x89PNG")
    (row,) = json.loads(figures.read_text())["divergences"]
    assert row["kinds"] == ["LocalHeads", "RoutingHeads"]
    assert 0 < row["mean"] < math.log(2)
    assert f"{row['mean']:.4f}±{row['std']:.4f}" in output


@pytest.mark.slow
def test_clusters_are_listed_and_drawn(run, tiny_run, tmp_path):
    figures, plot = tmp_path / "figures.json", tmp_path / "clusters.svg"
    analyze = ["analyze", "clusters", "--model", tiny_run, "--sequences", 4]
    status, output, _ = run(*analyze, "--json", figures, "--plot", plot)
    assert status == 0 and "4 sequences of the test split of text_folder" in output
    assert "<svg" in plot.read_text()
    heads = json.loads(figures.read_text())["heads"]
    assert [(head["kind"], head["of"]) for head in heads] == [
        ("RoutingHeads", "queries"),
        ("RoutingHeads", "keys"),
    ]
    for head in heads:
        assert sum(head["loads"]) == pytest.approx(len(head["loads"]))
        assert f"{head['of']}: entropy {head['entropy']:.2f}" in output


@pytest.mark.parametrize(
    "arguments, part",
    [
        (["causality", "--positions", 0], "--positions must be at least 1. Received: 0"),
        (["heads", "--positions", 513], "--positions must be from 1 to 512. Received: 513"),
        (["heads", "--heads", "0.0"], "--heads needs --plot"),
        (
            ["heads", "--plot", "no_such.png", "--heads", "0.2"],
            "--heads must be LAYER.HEAD from 0.0 to 0.1. Received: 0.2",
        ),
        (["clusters", "--sequences", 0], "--sequences must be at least 1"),
        (["clusters", "--plot", "clusters"], "--plot must end in .png"),
    ],
)
def test_bad_arguments_give_one_line(run, tiny_run, arguments, part):
    command, *rest = arguments
    status, _, error = run("analyze", command, "--model", tiny_run, *rest)
    assert_one_line(status, error, part)


@pytest.fixture
def analyze_attention(run, tmp_path):
    write_llama(tmp_path / "llama")
    (tmp_path / "text.txt").write_text("the cat sat on the mat. " * 40, encoding="utf-8")

    def analyze(*options, model="llama", text="text.txt"):
        needed = ["--model", tmp_path / model, "--text", tmp_path / text]
        return run("analyze", "attention", *needed, *options)

    return analyze


@pytest.mark.slow
def test_attention_is_measured_and_drawn(analyze_attention, tmp_path):
    figures, plot = tmp_path / "figures.json", tmp_path / "mass.png"
    sizes = ["--length", 300, "--queries", 8, "--keys", 16]
    status, output, _ = analyze_attention(*sizes, "--json", figures, "--plot", plot)
    assert status == 0 and "300 tokens of " in output and f"wrote {plot}" in output
    heads = json.loads(figures.read_text())["heads"]
    assert len(heads) == 8 and all(0 < head["window"] <= 1.001 for head in heads)
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "files", "message"),
    [
        (["--keys", 12], {}, "--keys must be a multiple of 8. Received: 12"),
        ([], {"text": "no_such.txt"}, "--text must be a text file. Received: "),
        ([], {"model": "no_such"}, "model must be an existing folder"),
        ([], {}, "tokens; 2,048 are needed"),
    ],
)
def test_bad_arguments_about_attention_give_one_line(analyze_attention, options, files, message):
    status, _, error = analyze_attention(*options, **files)
    assert_one_line(status, error, message)
