import json
import math

import pytest

from tests.models.adapted.llama_folder import write_llama

ROUTED = "Cluster of assignment 'nearest'"
SPLIT = "sequences of the test split of text_folder"


@pytest.fixture
def analyze(run, tmp_path):
    """Runs an analysis; returns its figures and its output."""

    def analyze(*words):
        figures = tmp_path / "figures.json"
        status, output, error = run("analyze", *words, "--json", figures)
        assert status == 0, error
        return json.loads(figures.read_text()), output

    return analyze


@pytest.mark.slow
def test_a_causal_model_sees_nothing_of_its_future(analyze, tiny_run):
    sizes = ["--sequences", 1, "--positions", 2]
    figures, output = analyze("causality", "--model", tiny_run, *sizes)
    assert "0.00% of" in output and figures["share_changed"] == 0.0


@pytest.mark.slow
def test_heads_are_compared_and_drawn(analyze, tiny_run, tmp_path):
    drawn = ["--plot", tmp_path / "heads.png", "--heads", "0.1"]
    figures, output = analyze("heads", "--model", tiny_run, "--sequences", 2, *drawn)
    assert f"2 {SPLIT}" in output and f"wrote {tmp_path / 'heads.png'}" in output
    assert (tmp_path / "heads.png").read_bytes().startswith(b"\x89PNG")
    (row,) = figures["divergences"]
    assert row["kinds"] == [ROUTED, "Window"]
    assert 0 < row["mean"] < math.log(2)
    assert f"{row['mean']:.4f}±{row['std']:.4f}" in output


@pytest.mark.slow
def test_clusters_are_listed_and_drawn(analyze, tiny_run, tmp_path):
    drawn = ["--plot", tmp_path / "clusters.svg"]
    figures, output = analyze("clusters", "--model", tiny_run, "--sequences", 4, *drawn)
    assert f"4 {SPLIT}" in output and "<svg" in (tmp_path / "clusters.svg").read_text()
    heads = figures["heads"]
    assert [(head["kind"], head["of"]) for head in heads] == [(ROUTED, "queries"), (ROUTED, "keys")]
    for head in heads:
        assert f"{head['of']}: entropy {head['entropy']:.2f}" in output


@pytest.mark.slow
def test_attention_is_measured_and_drawn(analyze, tmp_path):
    model, text, plot = write_llama(tmp_path / "llama"), tmp_path / "text.txt", tmp_path / "a.png"
    text.write_text("the cat sat on the mat. " * 40, encoding="utf-8")
    sizes = ["--length", 300, "--queries", 8, "--keys", 16, "--plot", plot]
    figures, output = analyze("attention", "--model", model, "--text", text, *sizes)
    assert "300 tokens of " in output and plot.read_bytes().startswith(b"\x89PNG")
    assert len(figures["heads"]) == 8
