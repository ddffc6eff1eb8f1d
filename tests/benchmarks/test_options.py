import argparse

import pytest

from rt_keras.benchmarks import machine, options


def parse(*given):
    parser = argparse.ArgumentParser()
    options.add_shared(parser, ["one", "two"])
    return parser.parse_args([str(option) for option in given])


def test_all_rivals_and_all_cores_are_the_default():
    args = parse()
    assert (args.rivals, args.repeats) == (None, 9)
    assert args.threads == machine.count_cores()
    assert parse("--rivals").rivals == []
    assert parse("--rivals", "two").rivals == ["two"]


def test_numbers_below_one_are_refused_by_the_name_of_their_option():
    args = argparse.Namespace(look_back=0, heads=1)
    options.check_at_least_one(args, "heads")
    with pytest.raises(ValueError, match="--look-back must be at least 1. Received: 0"):
        options.check_at_least_one(args, "heads", "look_back")


def test_values_must_be_among_those_allowed():
    with pytest.raises(ValueError, match="--kinds must be among full, local. Received: nearst"):
        options.check_among("kinds", ["full", "nearst"], ("full", "local"))


def test_the_origin_says_machine_versions_and_load():
    found = options.origin({}, [0.5])
    assert "cores of" in found["machine"] and found["rivals"] == {}
    assert found["load_average"][0] == 0.5 and len(found["load_average"]) == 2


def test_figures_are_compared_with_baselines_and_rivals():
    found = {"local": {"seconds": 2.0}, "full": {"seconds": 8.0}, "other": {"seconds": 4.0}}
    chosen = {"other": ("torch", "routing_transformer")}
    figures = options.figures_of(found, chosen, ["local", "absent"], length=16)
    assert [figure["kind"] for figure in figures] == ["local", "full", "other"]
    assert {figure["length"] for figure in figures} == {16}
    assert [figure["package"] for figure in figures] == ["rt_keras"] * 2 + ["routing-transformer"]
    assert figures[1]["times_as_fast_as"] == {"local": 0.25, "other": 0.5}
