import argparse
import json

import pytest

from rt_keras.benchmarks import pretrained
from rt_keras.benchmarks.pretrained.kinds import head_groups
from rt_keras.models.adapted.default_heads import default_head_groups, few_look_far
from tests.benchmarks.pretrained.bert_folder import write_bert
from tests.models.adapted.checks import make_backbone
from tests.models.adapted.llama_folder import write_llama

SETTINGS = {"model": "llama", "text": "text.txt", "other": "text.txt"}


def figure(kind, keys, book, length=1000):
    return {
        "kind": kind,
        "length": length,
        "keys": keys,
        "book": book,
        "again": 0.5,
        "needles": 0.8,
        "seconds": 1.5,
        "gigabytes": 0.25,
        "token_seconds": 0.02,
        "settings": SETTINGS,
    }


FIGURES = [
    figure("full", 750.0, 3.25),
    figure("oracle", 388.0, 3.5),
    figure("oracle:num_keys=64", 324.0, 3.75),
]


def parse(tmp_path, *options, **others):
    (tmp_path / "text.txt").write_text("the cat sat on the mat. " * 400, encoding="utf-8")
    parser = argparse.ArgumentParser()
    pretrained.add_arguments(parser)
    needed = ["--model", str(tmp_path / "llama"), "--text", str(tmp_path / "text.txt")]
    args = parser.parse_args([*needed, *options])
    return argparse.Namespace(**{"json": None, **vars(args), **others})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--lengths", "100"], "--lengths must be at least 128. Received: 100"),
        (["--kinds", "nonsense"], "--kinds must be among keras_hub, full, .*Received: nonsense"),
        (["--kinds", "full:num_keys=3"], "--kinds full has no options"),
        (["--kinds", "oracle:keys=3"], "--kinds oracle has the options num_keys. Received: keys"),
        (
            ["--kinds", "oracle:num_keys=0"],
            "num_keys must be an integer of at least 1",
        ),
        (["--other", "no_such.txt"], "--other must be a text file. Received: no_such.txt"),
        (["--plot", "loss.txt"], "--plot must end in .png"),
        (["--needles", "-1"], "--needles must be at least 0. Received: -1"),
    ],
)
def test_bad_options_are_refused(tmp_path, options, message):
    write_llama(tmp_path / "llama")
    with pytest.raises(ValueError, match=message):
        pretrained.check(parse(tmp_path, *options))


def test_the_table_says_what_is_lost_to_full_attention():
    lines = pretrained.report("a machine", FIGURES).splitlines()
    assert lines[:2] == ["llama on text.txt, needles in text.txt", "a machine"]
    (row,) = (line.split() for line in lines if "oracle" in line and "64" not in line)
    expected = "1,000 oracle 388 3.5000 0.2500 0.500 80% 1.50 0.25 20.0"
    assert row == expected.split()


def of_encoder(kind, keys, cosine):
    cell = {"kind": kind, "length": 512, "keys": keys, "cosine": cosine, "settings": SETTINGS}
    return {**cell, "retrieval": 0.625, "seconds": 0.25}


ENCODER = [of_encoder("full", 512.0, 1.0), of_encoder("blocks", 64.0, 0.875)]


def test_the_table_of_an_encoder():
    lines = pretrained.report("a machine", ENCODER).splitlines()
    assert lines[0] == "llama on text.txt, centroids from text.txt"
    assert lines[-1].split() == ["512", "blocks", "64", "0.875", "62.5%", "0.250"]


def test_the_picture_of_an_encoder(tmp_path):
    pretrained.draw(ENCODER, tmp_path / "cosine.svg")
    assert (tmp_path / "cosine.svg").read_text().startswith("<?xml")


def test_losses_alone_are_of_language_models(tmp_path):
    write_bert(tmp_path / "bert")
    args = parse(tmp_path, "--losses-only", model=str(tmp_path / "bert"))
    with pytest.raises(ValueError, match="--losses-only needs a language model. Received: --model"):
        pretrained.check(args)


def test_kinds_of_decoders_are_none_of_encoders(tmp_path):
    write_bert(tmp_path / "bert")
    args = parse(tmp_path, "--kinds", "window_first", model=str(tmp_path / "bert"))
    with pytest.raises(ValueError, match="--kinds must be among full, window, .*: window_first"):
        pretrained.check(args)


@pytest.mark.end_to_end
def test_an_encoder_is_measured(tmp_path, capfd):
    write_bert(tmp_path / "bert")
    options = ["--lengths", "128", "--kinds", "full", "oracle:num_keys=3"]
    model, path = str(tmp_path / "bert"), tmp_path / "figures.json"
    result = pretrained.main(parse(tmp_path, *options, model=model, json=path))
    assert json.loads(path.read_text()) == result
    full, oracle = result["figures"]
    assert abs(full["cosine"] - 1) < 1e-5 and full["keys"] == 128
    assert oracle["cosine"] < full["cosine"] and oracle["keys"] < 16
    assert "cosine" in capfd.readouterr().out


def test_budgets_of_a_kind_are_a_line_of_the_picture(tmp_path):
    path = tmp_path / "loss.svg"
    pretrained.draw([*FIGURES, figure("full", 1500.0, 3.0, 2000)], path)
    shown = path.read_text()
    assert shown.startswith("<?xml") and "num_keys" not in shown


@pytest.mark.end_to_end
def test_cells_are_measured_once_and_kept(tmp_path, capfd):
    write_llama(tmp_path / "llama")
    path = tmp_path / "figures.json"
    options = ["--lengths", "200", "--kinds", "full", "oracle:num_keys=3"]
    result = pretrained.main(parse(tmp_path, *options, json=path, plot=tmp_path / "loss.png"))
    assert json.loads(path.read_text()) == result
    assert [x["kind"] for x in result["figures"]] == ["full", "oracle:num_keys=3"]
    assert (tmp_path / "loss.png").exists()
    assert "needles" in capfd.readouterr().out
    again = pretrained.main(parse(tmp_path, *options, json=path))
    assert again == result
    assert "full at 200 tokens: already in" in capfd.readouterr().err
    options = ["--lengths", "200", "--kinds", "full", "--needles", "0"]
    without = pretrained.main(parse(tmp_path, *options, json=path))["figures"][-1]
    assert without["needles"] is None and without["needles_at_depths"] == []
    assert without["seconds"] > 0 and without["book"] == result["figures"][0]["book"]
    capfd.readouterr()
    options = ["--lengths", "200", "--kinds", "full", "--losses-only"]
    of_losses = pretrained.main(parse(tmp_path, *options, json=path))["figures"][-1]
    assert {*of_losses} == {"kind", "length", "keys", "book", "again", "by_position", "settings"}
    assert of_losses["book"] == without["book"]
    shown = capfd.readouterr().out
    assert "again" in shown and "prefill" not in shown


@pytest.mark.end_to_end
def test_models_and_texts_that_will_not_do_are_refused(tmp_path):
    with pytest.raises(ValueError, match="model must be an existing folder"):
        pretrained.main(parse(tmp_path, "--lengths", "200", "--kinds", "full"))
    write_llama(tmp_path / "llama")
    with pytest.raises(ValueError, match="text.txt has .* tokens; 90,000 are needed"):
        pretrained.main(parse(tmp_path, "--lengths", "90000", "--kinds", "full"))


@pytest.mark.parametrize("family, few", [("Llama3", False), ("Gemma3", True)])
def test_content_blocks_are_the_default_of_adapt(family, few):
    backbone = make_backbone(family)
    (default,), _ = default_head_groups(backbone)
    assert few_look_far(backbone) == few
    (group,) = head_groups("content_blocks", default.num_heads, few=few)
    assert group.key_sets == default.key_sets
