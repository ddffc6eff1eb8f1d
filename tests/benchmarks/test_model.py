import argparse

import pytest

from rt_keras.benchmarks import input_pipeline, model, rivals


def parse(*options):
    parser = argparse.ArgumentParser()
    model.add_arguments(parser)
    return parser.parse_args([str(option) for option in options])


@pytest.mark.parametrize(
    "options, message",
    [
        (["--length", 1000], "multiples of --window 128.*Received: 1000"),
        (["--length", 0], "--length must be at least 1"),
        (["--batch", 0], "--batch must be at least 1. Received: 0"),
        (["--layers", 0], "--layers must be at least 1"),
        (["--width", 100], "--width must be a multiple of 8. Received: 100"),
        (["--window", 1], "--window must be even. Received: 1"),
    ],
)
def test_options_out_of_range_are_refused_before_anything_runs(options, message):
    with pytest.raises(ValueError, match=message) as error:
        model.main(parse(*options))
    assert "\n" not in str(error.value)


def test_the_defaults_are_the_published_comparison():
    args = parse()
    model.check(args)
    assert (args.length, args.batch, args.window, args.layers, args.width) == (8192, 1, 128, 2, 256)
    assert tuple(args.kinds) == model.KINDS


SMALL = ["--length", 64, "--batch", 2, "--window", 8, "--layers", 1, "--width", 16]
SECONDS = {"local": 2.0, "nearest_shared": 4.0, "routing_transformer": 8.0, model.INPUT: 0.5}


@pytest.fixture
def contests(monkeypatch):
    """The contenders of each contest, which take the seconds above, if any."""
    held = []

    def contest(contenders, repeats, threads):
        held.append(contenders)
        return {
            name: {"seconds": SECONDS[name], "runs": [SECONDS[name]], "peak_bytes": 5 * 10**6}
            for name in contenders
            if name in SECONDS
        }

    monkeypatch.setattr(model.workers, "contest", contest)
    monkeypatch.setattr(rivals, "versions", lambda chosen: {})
    return held


RIVALS = {"routing_transformer": ("torch", "routing_transformer")}


def test_tokens_a_second_and_ratios_come_from_the_same_contest(contests):
    result = model.measure(parse(*SMALL, "--kinds", "nearest_shared", "local"), RIVALS)
    assert len(contests) == 1
    found = {figure["kind"]: figure for figure in result["figures"]}
    assert found["nearest_shared"]["tokens_per_second"] == 128 / 4.0
    assert found["nearest_shared"]["times_as_fast_as"] == {"local": 0.5, "routing_transformer": 2.0}
    assert found["routing_transformer"]["package"] == "routing-transformer"
    rate = input_pipeline.tokens_of_a_run(64, 2) / 0.5
    assert result["input"]["tokens_per_second"] == rate
    assert result["input"]["times_the_fastest_step"] == rate / (128 / 2.0)
    lines = model.report(result).splitlines()
    assert lines[-5].split() == ["nearest", "shared", "4.0000", "32", "5", "0.50", "2.00"]
    assert lines[-1].startswith("input from text files:")


def test_relative_positions_are_for_our_heads_alone(contests):
    model.measure(parse(*SMALL, "--kinds", "local", "--relative-positions"), RIVALS)
    assert contests[0]["local"]["arguments"]["relative_positions"] is True
    assert "relative_positions" not in contests[0]["routing_transformer"]["arguments"]


def test_nothing_that_could_be_measured_is_an_error(contests):
    with pytest.raises(RuntimeError, match="every contender failed"):
        model.measure(parse(*SMALL, "--kinds", "full"), {})


@pytest.mark.end_to_end
def test_table_and_figures_of_a_small_run(capsys):
    options = ["--kinds", "local", "--length", 32, "--window", 8, "--layers", 1, "--width", 16]
    result = model.main(parse(*options, "--repeats", 2, "--rivals"))
    assert "local" in capsys.readouterr().out
    (figure,) = result["figures"]
    assert figure["tokens_per_second"] == 32 / figure["seconds"]
    assert result["input"]["times_the_fastest_step"] > 0
