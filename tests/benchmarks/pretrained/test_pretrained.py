import json

import pytest

from rt_keras.benchmarks import pretrained
from tests.benchmarks import checks
from tests.benchmarks.pretrained.bert_folder import write_bert
from tests.models.adapted.llama_folder import write_llama

SETTINGS = {"model": "llama", "text": "text.txt", "other": "text.txt"}
OTHERS = {"again": 0.5, "needles": 0.8, "seconds": 1.5, "gigabytes": 0.25, "token_seconds": 0.02}


def figure(kind, keys, book, length=1000):
    cell = {"kind": kind, "length": length, "settings": SETTINGS}
    return {**cell, **OTHERS, "keys": keys, "book": book}


FIGURES = [
    figure("full", 750.0, 3.25),
    figure("oracle", 388.0, 3.5),
    figure("oracle:num_keys=64", 324.0, 3.75),
]


def of_encoder(kind, keys, cosine):
    cell = {"kind": kind, "length": 512, "keys": keys, "cosine": cosine, "settings": SETTINGS}
    return {**cell, "retrieval": 0.625, "seconds": 0.25}


ENCODER = [of_encoder("full", 512.0, 1.0), of_encoder("blocks", 64.0, 0.875)]


def parse(folder, *options, model="llama", **others):
    (folder / "text.txt").write_text("the cat sat on the mat. " * 400, encoding="utf-8")
    needed = {"model": folder / model, "text": folder / "text.txt"}
    return checks.parse(pretrained, *options, **needed, **others)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder of a language model and an encoder."""
    folder = tmp_path_factory.mktemp("models")
    write_llama(folder / "llama")
    write_bert(folder / "bert")
    return folder


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("llama", ["--lengths", "100"], "--lengths must be at least 128. Received: 100"),
        ("llama", ["--kinds", "nonsense"], "--kinds must be among keras_hub, full, .*: nonsense"),
        ("llama", ["--kinds", "oracle:keys=3"], "has the options num_keys. Received: keys"),
        ("llama", ["--other", "no_such.txt"], "--other must be a text file. Received: no_such.txt"),
        (
            "bert",
            ["--losses-only"],
            "--losses-only needs a language model. Received: --model",
        ),
        ("bert", ["--kinds", "window_first"], "--kinds must be among full, window, .*window_first"),
        ("no_such", [], "model must be an existing folder"),
    ],
)
def test_bad_options_are_refused(models, model, options, message):
    with pytest.raises(ValueError, match=message):
        pretrained.check(parse(models, *options, model=model))


def test_the_table_says_what_is_lost_to_full_attention():
    lines = pretrained.report("a machine", FIGURES).splitlines()
    assert lines[:2] == ["llama on text.txt, needles in text.txt", "a machine"]
    (row,) = (line.split() for line in lines if "oracle" in line and "64" not in line)
    expected = "1,000 oracle 388 3.5000 0.2500 0.500 80% 1.50 0.25 20.0"
    assert row == expected.split()
    lines = pretrained.report("a machine", ENCODER).splitlines()
    assert lines[0] == "llama on text.txt"
    assert lines[-1].split() == ["512", "blocks", "64", "0.875", "62.5%", "0.250"]


def test_budgets_of_a_kind_are_a_line_of_the_picture(tmp_path):
    for figures in ([*FIGURES, figure("full", 1500.0, 3.0, 2000)], ENCODER):
        pretrained.draw(figures, tmp_path / "a.svg")
        shown = (tmp_path / "a.svg").read_text()
        assert shown.startswith("<?xml") and "num_keys" not in shown


@pytest.mark.weekly
def test_an_encoder_is_measured_too(models, tmp_path, monkeypatch, capfd):
    # Without processes.
    monkeypatch.setattr(pretrained, "_measure_alone", pretrained._measure)
    options = ["--lengths", "130", "--kinds", "full", "window"]
    path = tmp_path / "figures.json"
    result = pretrained.main(parse(models, *options, model="bert", json=path))
    assert json.loads(path.read_text()) == result
    full, window = result["figures"]
    assert abs(full["cosine"] - 1) < 1e-5 and full["keys"] == 130 and full["seconds"] > 0
    assert 0 < full["retrieval"] < 1 and 0 < window["cosine"] < 1 + 1e-5 and window["keys"] < 64
    assert "cosine" in capfd.readouterr().out


@pytest.mark.weekly
def test_cells_of_a_language_model_are_measured_once_in_processes_and_kept(
    models, tmp_path, monkeypatch, capfd
):
    path = tmp_path / "figures.json"
    options = ["--lengths", "200", "--kinds", "full", "--needles", "1"]
    (losses,) = pretrained.main(parse(models, *options, "--losses-only", json=path))["figures"]
    assert {*losses} == {"kind", "length", "keys", "book", "again", "by_position", "settings"}
    shown = capfd.readouterr().out
    assert "again" in shown and "prefill" not in shown
    monkeypatch.setattr(pretrained, "_measure_alone", pretrained._measure)
    result = pretrained.main(parse(models, *options, json=path, plot=tmp_path / "loss.png"))
    assert json.loads(path.read_text()) == result
    full = result["figures"][-1]
    assert full["kind"] == "full" and full["keys"] == 150.5 and full["book"] == losses["book"]
    assert full["seconds"] > 0 and full["first_seconds"] > 0 and full["gigabytes"] >= 0
    assert len(full["needles_at_depths"]) == 1 and (tmp_path / "loss.png").exists()
    assert "needles" in capfd.readouterr().out
    assert pretrained.main(parse(models, *options, json=path)) == result
    assert "full at 200 tokens: already in" in capfd.readouterr().err
    with pytest.raises(ValueError, match="text.txt has .* tokens; 90,000 are needed"):
        pretrained.main(parse(models, "--lengths", "90000", "--kinds", "full"))
