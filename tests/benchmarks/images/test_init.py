import argparse
import json

import pytest

from rt_keras import cli
from rt_keras.benchmarks import images
from tests.data.test_idx_images import write_folder


def parse(*given):
    parser = argparse.ArgumentParser()
    images.add_arguments(parser)
    parser.add_argument("--json")
    return parser.parse_args([str(option) for option in given])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", 30], "--steps must be a multiple of the number of tests in a run, 20"),
        (["--width", 12], "--width must be a multiple of 8"),
        (["--keys", 0], "--keys must be at least 1"),
        (["--seeds", -1], "--seeds must be"),
        (["--kinds", "nearest:keys=0"], "keys must be an integer above 0"),
        (
            ["--data", "mnist"],
            "--directory must name the folder of idx_images, and is for no other",
        ),
        (["--plot", "a.txt"], "--plot must end in"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        images.main(parse("--directory", "idx", *options))


def test_a_folder_is_needed():
    with pytest.raises(ValueError, match="--directory must name the folder.*--directory None"):
        images.main(parse())


def figure(settings):
    pair = {"kinds": ["LocalHeads", "RoutingHeads"], "mean": 0.5}
    same = {"kinds": ["LocalHeads", "LocalHeads"], "mean": 0.1}
    if settings["kind"] == "png":
        return {"settings": settings, "machine": "a machine", "test_bits": 5.0}
    return {
        "settings": settings,
        "machine": "a machine",
        "test_bits": 3.0 + settings["seed"],
        "weights": 1000,
        "seconds": 0.1,
        "divergences": [pair, same],
    }


def test_the_table_has_a_row_for_each_kind(monkeypatch, tmp_path, capsys):
    made = []
    monkeypatch.setattr(images, "train_alone", lambda x: made.append(x) or figure(x))
    options = ["--kinds", "local", "png", "--seeds", 0, 1, "--plot", tmp_path / "a.svg"]
    images.main(parse("--directory", "idx", *options))
    # A codec has no seeds.
    assert [(x["kind"], x["seed"]) for x in made] == [("local", 0), ("png", 0), ("local", 1)]
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["local", "3.500", "0.707", "0.500", "1,000", "100"] in lines
    assert ["png", "5.000", "-", "-", "-", "-"] in lines
    assert (tmp_path / "a.svg").is_file()


@pytest.mark.end_to_end
def test_the_command_measures_and_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "prepared"))
    write_folder(tmp_path / "idx")
    small = [
        "--steps",
        "20",
        "--layers",
        "1",
        "--width",
        "16",
        "--batch",
        "2",
        "--keys",
        "10",
        "--test-images",
        "3",
    ]
    command = ["benchmark", "images", "--directory", str(tmp_path / "idx"), *small]
    command += ["--kinds", "png", "local", "--json", str(tmp_path / "a.json")]
    assert cli.main(command) == 0
    figures = json.loads((tmp_path / "a.json").read_text())["figures"]
    assert [x["settings"]["kind"] for x in figures] == ["png", "local"]
    assert cli.main(command) == 0
    assert "already in" in capsys.readouterr().err
