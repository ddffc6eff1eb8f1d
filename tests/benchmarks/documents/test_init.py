import argparse
import json

import pytest

from rt_keras import cli
from rt_keras.benchmarks import documents
from tests.benchmarks.documents.test_pages import write_pages, write_vocabulary


def parse(*given):
    parser = argparse.ArgumentParser()
    documents.add_arguments(parser)
    parser.add_argument("--json")
    needed = ("--directory", "pages", "--vocabulary", "a.spm")
    return parser.parse_args([str(option) for option in (*needed, *given)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", 30], "--steps must be a multiple of the number of tests in a run, 20"),
        (["--length", 1000], "--length must be a multiple of 512"),
        (["--part", 2], "--part must be"),
        (["--keys", 0], "--keys must be at least 1"),
        (["--translated", -1], "--translated must be"),
        (["--plot", "a.txt"], "--plot must end in"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        documents.main(parse(*options))


def figure(settings):
    losses = {"all": 3.0 + settings["seed"], "256": 4.0, "512": 2.0, "new": 5.0}
    found = {"settings": settings, "machine": "a machine", "losses": losses, "seconds": 0.1}
    if settings["translated"]:
        scores = {"greedy": 10, "beam": 12, "random": 14}
        found |= {"bleu": scores, "chrf": {name: 20 + score for name, score in scores.items()}}
    return found


def test_the_table_has_a_row_for_each_kind(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(documents, "train_alone", figure)
    options = ["--kinds", "local", "full_parts", "--seeds", 0, 1, "--plot", tmp_path / "a.svg"]
    documents.main(parse(*options))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["local", "3.500", "0.707", "5.000", "-", "-", "100"] in lines
    assert (tmp_path / "a.svg").is_file()
    documents.main(parse("--kinds", "local", "--translated", 3))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    scores = ["10.0", "30.0", "12.0", "32.0", "14.0", "34.0"]
    assert ["local", "3.000", "-", "5.000", "-", "-", *scores, "100"] in lines


@pytest.mark.end_to_end
def test_the_command_measures_and_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "prepared"))
    folder, vocabulary = write_pages(tmp_path / "pages"), write_vocabulary(tmp_path / "a.spm")
    small = {"steps": 20, "layers": 1, "width": 16, "length": 128, "part": 32, "keys": 12}
    command = ["benchmark", "documents", "--directory", str(folder)]
    command += [word for name, value in small.items() for word in (f"--{name}", str(value))]
    command += ["--vocabulary", str(vocabulary), "--kinds", "local"]
    command += ["--json", str(tmp_path / "a.json")]
    assert cli.main(command) == 0
    figures = json.loads((tmp_path / "a.json").read_text())["figures"]
    assert [x["settings"]["kind"] for x in figures] == ["local"]
    assert cli.main(command) == 0
    assert "already in" in capsys.readouterr().err
