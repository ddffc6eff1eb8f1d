import argparse

import pytest

from rt_keras.benchmarks import input, input_pipeline
from rt_keras.benchmarks.compare import compare


def parse(*options):
    parser = argparse.ArgumentParser()
    input.add_arguments(parser)
    return parser.parse_args([str(option) for option in options])


@pytest.mark.parametrize("name", ["gigabytes", "length", "batch", "repeats", "threads"])
def test_options_out_of_range_are_refused_before_anything_runs(name):
    with pytest.raises(ValueError, match=f"--{name} must be at least 1. Received: 0"):
        input.main(parse(f"--{name}", 0))
    with pytest.raises(ValueError, match="--step must be at least 0. Received: -1"):
        input.main(parse("--step", -1))


@pytest.mark.end_to_end
def test_it_measures_packing_reading_and_starts(capsys):
    options = ("--gigabytes", 1, "--length", 64, "--batch", 2, "--repeats", 1)
    result = input.main(parse(*options))
    names = ["packing", "reading", "first batch at step 0", "first batch at step 1,000,000"]
    assert [figure["kind"] for figure in result["figures"]] == names
    rates = [figure["tokens_per_second"] for figure in result["figures"]]
    assert min(rates[:2]) > 0 and rates[2:] == [None, None]
    shown = capsys.readouterr().out
    assert all(name in shown for name in names)
    assert not any(row["worse"] for row in compare(result, result, 0))
    tokens = input_pipeline.tokens_of_a_run(64, 2)
    assert rates[1] == tokens / result["figures"][1]["seconds"]
