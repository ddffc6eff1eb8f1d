import argparse
import json

import numpy as np
import pytest

from rt_keras.benchmarks import approximate
from rt_keras.benchmarks.approximate import models
from rt_keras.benchmarks.approximate.kinds import KINDS


def parse(*options):
    parser = argparse.ArgumentParser()
    approximate.add_arguments(parser)
    args = parser.parse_args(options)
    return argparse.Namespace(**{"json": None, **vars(args)})


@pytest.mark.end_to_end
@pytest.mark.parametrize("causal", [False, True])
def test_every_kind_takes_the_place_of_full_attention(causal):
    backbone = models.make_backbone(causal, 64, 1, 16, 2)
    tokens = np.random.default_rng(0).integers(256, size=[2, 64]).astype("int32")
    inputs = models.inputs_of(tokens)
    for kind in KINDS:
        if not (causal and kind in approximate.NOT_CAUSAL):
            model = models.adapted(backbone, kind, 16, 64, causal, inputs)
            assert model(inputs).shape == (2, 64, 16)
            difference = np.abs(model(inputs) - backbone(inputs)).max()
            assert difference < 1e-5 if kind == "full" else difference > 1e-4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", "0"], "steps"),
        (["--distill-steps", "-1"], "--distill-steps must be at least 0. Received: -1"),
        (["--width", "30"], "--width must be a multiple of --heads 4. Received: 30"),
        (["--length", "65"], "--length must be even and at least 64. Received: 65"),
        (["--learning-rate", "0"], "--learning-rate must be above 0"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        approximate.check(parse(*options))


def test_the_table_says_what_is_lost():
    settings = {"length": 64, "layers": 1, "width": 16, "steps": 5, "distill_steps": 2}
    shared = {"task": "copy", "settings": settings, "loss": 1.0}
    figures = [
        {**shared, "kind": "full", "accuracy": 0.8},
        {
            **shared,
            "kind": "local",
            "accuracy": 0.4,
            "accuracy_distilled": 0.6,
            "loss_distilled": 0.7,
        },
    ]
    lines = approximate.report({"machine": "a machine", "figures": figures, "times": []})
    (row,) = (line.split() for line in lines.splitlines() if line.startswith("local"))
    assert row == ["local", "0.400", "1.000", "50.0%", "0.600", "0.700", "25.0%"]


@pytest.mark.end_to_end
def test_models_are_trained_adapted_distilled_and_timed(tmp_path, capsys):
    path = tmp_path / "approximate.json"
    options = (
        "--tasks span --kinds full nearest --length 64 --keys 16 --width 16 --heads 2 --steps 20"
    )
    options += " --distill-steps 2 --batch 2 --time-lengths 64"
    args = parse(*options.split())
    args.json = path
    result = approximate.main(args)
    assert [figure["kind"] for figure in result["figures"]] == ["full", "nearest"]
    assert {x["kind"] for x in result["times"]} == {"full", "nearest"}
    assert "accuracy_distilled" in result["figures"][1]
    assert json.loads(path.read_text())["figures"] == result["figures"]
    assert "lost" in capsys.readouterr().out
