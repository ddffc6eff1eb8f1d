import json
import math

import pytest

from tests.models.adapted.llama_folder import write_llama

ROUTED = "Cluster of assignment 'nearest'"


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
    assert row["kinds"] == [ROUTED, "Window"]
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
        (ROUTED, "queries"),
        (ROUTED, "keys"),
    ]
    for head in heads:
        assert sum(head["loads"]) == pytest.approx(len(head["loads"]))
        assert f"{head['of']}: entropy {head['entropy']:.2f}" in output


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
