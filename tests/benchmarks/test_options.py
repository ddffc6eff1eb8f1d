import argparse

import pytest

from rt_keras.benchmarks import (
    approximate,
    attention,
    decode,
    machine,
    model,
    options,
    quality,
    repetition,
)


def parse(*given):
    parser = argparse.ArgumentParser()
    options.add_shared(parser, ("one", "two"))
    return parser.parse_args([str(option) for option in given])


def test_all_rivals_and_all_cores_are_the_default():
    args = parse()
    assert (args.rivals, args.repeats) == (None, 9)
    assert args.threads == machine.count_cores()
    assert parse("--rivals").rivals == []
    assert parse("--rivals", "two").rivals == ["two"]


@pytest.mark.parametrize(
    "command, names",
    [
        (approximate, ["tasks", "kinds"]),
        (attention, ["kinds", "rivals"]),
        (decode, ["kinds", "rivals"]),
        (model, ["kinds", "rivals"]),
        (quality, ["tasks", "kinds"]),
        (repetition, ["kinds"]),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_names_must_be_among_those_there_are(command, names, capsys):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    for name in names:
        with pytest.raises(SystemExit):
            parser.parse_args([f"--{name}", "nearst"])
        line = capsys.readouterr().err.splitlines()[-1]
        assert f"--{name}: invalid choice: 'nearst' (choose from '" in line


def test_widths_must_be_multiples():
    args = argparse.Namespace(width=30)
    options.check_multiple(args, "width", 10)
    with pytest.raises(ValueError, match="--width must be a multiple of --heads 4. Received: 30"):
        options.check_multiple(args, "width", 4, "--heads ")
    with pytest.raises(ValueError, match="--width must be a multiple of 8. Received: 0"):
        options.check_multiple(argparse.Namespace(width=0), "width", 8)


def test_a_result_says_machine_versions_and_load():
    args, figures = argparse.Namespace(threads=2, repeats=3), [{"seconds": 1.0}]
    found = options.result(args, figures, 0.5, {}, {"width": 8}, benchmark="model")
    assert "cores of" in found["machine"] and found["rivals"] == {}
    assert found["load_average"][0] == 0.5 and len(found["load_average"]) == 2
    assert found["settings"] == {"width": 8, "threads": 2, "repeats": 3}
    assert found["benchmark"] == "model" and found["figures"] == figures
    with pytest.raises(RuntimeError, match="Nothing was measured: every contender failed."):
        options.result(args, [], 0.5, {}, {})


def test_figures_are_compared_with_baselines_and_rivals():
    found = {"local": {"seconds": 2.0}, "full": {"seconds": 8.0}, "other": {"seconds": 4.0}}
    chosen = {"other": ("torch", "routing_transformer")}
    figures = options.figures_of(found, chosen, ["local", "absent"], length=16)
    assert [figure["kind"] for figure in figures] == ["local", "full", "other"]
    assert {figure["length"] for figure in figures} == {16}
    assert [figure["package"] for figure in figures] == ["rt_keras"] * 2 + ["routing-transformer"]
    assert figures[1]["times_as_fast_as"] == {"local": 0.25, "other": 0.5}
