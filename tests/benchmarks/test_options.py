import argparse

import pytest

from rt_keras.benchmarks import (
    attention,
    decode,
    machine,
    model,
    options,
)
from tests.benchmarks.checks import parse


@pytest.mark.parametrize(
    "command, given, message",
    [
        (decode, {"lengths": 128}, "--lengths must be greater than --tokens 128 and 4"),
        (model, {"length": 1000}, "multiples of --window 128.*Received: 1000"),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_options_out_of_range_are_refused_before_anything_runs(command, given, message):
    with pytest.raises(ValueError, match=message):
        command.main(parse(command, **given))


def test_names_must_be_among_those_there_are(capsys):
    with pytest.raises(SystemExit):
        parse(attention, kinds="nearst")
    line = capsys.readouterr().err.splitlines()[-1]
    assert "--kinds: invalid choice: 'nearst' (choose from '" in line
    args = parse(attention)
    assert (args.rivals, args.repeats, args.threads) == (None, 9, machine.count_cores())


def test_a_result_says_machine_versions_and_load():
    args, figures = argparse.Namespace(threads=2, repeats=3), [{"seconds": 1.0}]
    found = options.result(args, figures, 0.5, {}, {"width": 8}, benchmark="model")
    assert "cores of" in found["machine"] and found["rivals"] == {}
    assert machine.platform.node() not in found["machine"].split()
    assert found["load_average"][0] == 0.5 and len(found["load_average"]) == 2
    assert found["settings"] == {"width": 8, "threads": 2, "repeats": 3}
    assert found["benchmark"] == "model" and found["figures"] == figures
    with pytest.raises(RuntimeError, match="Nothing was measured: every contender failed."):
        options.result(args, [], 0.5, {}, {})
