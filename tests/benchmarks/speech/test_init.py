import argparse
import json

import pytest

from rt_keras import cli
from rt_keras.benchmarks import speech
from tests.benchmarks.speech.test_training import write_speech, write_vocabulary


def parse(*given):
    parser = argparse.ArgumentParser()
    speech.add_arguments(parser)
    parser.add_argument("--json")
    needed = ("--directory", "speech", "--vocabulary", "a.spm")
    return parser.parse_args([str(option) for option in (*needed, *given)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", 30], "--steps must be a multiple of the number of tests in a run, 20"),
        (["--keys", 5], "--keys must be at least 6"),
        (["--width", 12], "--width must be a multiple of 8"),
        (["--time-lengths", 50], "--time-lengths must be at least 96"),
        (["--plot", "a.svg"], "--plot needs --time-lengths"),
        (["--plot", "a.txt"], "--plot must end in"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        speech.main(parse(*options))


def figure(settings):
    rates = {"character_error_rate": 0.25 + 0.1 * settings["seed"], "word_error_rate": 0.5}
    found = {"settings": settings, "machine": "a machine", "weights": 1000, "seconds": 0.1}
    if settings["kind"] == "full":
        found["swapped"] = {"local": {"character_error_rate": 0.75}}
    return {**found, **rates}


def times(args):
    seconds = {"full": 1.0, "local": 0.5}
    return [
        {"kind": kind, "length": 800, "what": what, "seconds": seconds[kind], "peak_bytes": 2e6}
        for kind in args.kinds
        for what in ("step", "forward")
    ]


def test_the_tables_have_a_row_for_each_kind(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(speech, "train_alone", figure)
    monkeypatch.setattr(speech, "measure_times", times)
    options = ["--kinds", "full", "local", "--seeds", 0, 1, "--plot", tmp_path / "a.svg"]
    speech.main(parse(*options, "--time-lengths", 800))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["local", "0.300", "0.071", "0.500", "0.750", "1,000", "100"] in lines
    assert ["full", "0.300", "0.071", "0.500", "-", "1,000", "100"] in lines
    assert ["local", "800", "0.500", "0.50", "0.500", "2"] in lines
    assert (tmp_path / "a.svg").is_file()


@pytest.mark.end_to_end
def test_the_command_measures_and_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "prepared"))
    folder, vocabulary = write_speech(tmp_path / "speech"), write_vocabulary(tmp_path / "a.spm")
    small = {"steps": 20, "layers": 1, "width": 16, "length": 64, "keys": 12, "batch": 1}
    command = ["benchmark", "speech", "--directory", str(folder), "--vocabulary", str(vocabulary)]
    command += [word for name, value in small.items() for word in (f"--{name}", str(value))]
    command += ["--kinds", "full", "--time-lengths", "64"]
    command += ["--json", str(tmp_path / "a.json"), "--plot", str(tmp_path / "a.svg")]
    assert cli.main(command) == 0
    result = json.loads((tmp_path / "a.json").read_text())
    assert [x["settings"]["kind"] for x in result["figures"]] == ["full"]
    assert [(x["kind"], x["what"]) for x in result["times"]] == [
        ("full", "step"),
        ("full", "forward"),
    ]
    assert (tmp_path / "a.svg").is_file()
    assert cli.main(command) == 0
    assert "already in" in capsys.readouterr().err
