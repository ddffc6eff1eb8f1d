import json

import pytest


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
