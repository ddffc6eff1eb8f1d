import json

import pytest

from tests.cli.checks import assert_one_line
from tests.models.adapted.llama_folder import write_llama


@pytest.fixture
def analyze(run, tmp_path):
    write_llama(tmp_path / "llama")
    (tmp_path / "text.txt").write_text("the cat sat on the mat. " * 40, encoding="utf-8")

    def analyze(*options, model="llama", text="text.txt"):
        needed = ["--model", tmp_path / model, "--text", tmp_path / text]
        return run("analyze", "attention", *needed, *options)

    return analyze


@pytest.mark.slow
def test_attention_is_measured_and_drawn(analyze, tmp_path):
    figures, plot = tmp_path / "figures.json", tmp_path / "mass.png"
    sizes = ["--length", 300, "--queries", 8, "--keys", 16]
    status, output, _ = analyze(*sizes, "--json", figures, "--plot", plot)
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
def test_bad_arguments_give_one_line(analyze, options, files, message):
    status, _, error = analyze(*options, **files)
    assert_one_line(status, error, message)
