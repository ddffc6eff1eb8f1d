import contextlib
import io
import json

import pytest

from rt_keras import cli
from rt_keras.cli import tpu_check
from rt_keras.tpu import check
from tests.tpu.checks import TINY, needs_compiler


@pytest.mark.end_to_end
@needs_compiler
def test_a_step_compiles_for_a_tpu(tmp_path, capsys):
    settings = {**TINY, "model.routing.num_heads": 0, "optimizer.name": "adafactor"}
    command = ["tpu-check", "--config", "quickstart", "--batch", "2"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    assert cli.main([*command, "--json", str(tmp_path / "check.json")]) == 0
    printed = capsys.readouterr().out
    assert "compiles for v5e:2x2 and fits" in printed and "2 x 16 tokens" in printed
    assert "temporaries" in printed and "bytes accessed" in printed
    figures = json.loads((tmp_path / "check.json").read_text())
    # Memory that is updated in place counts once.
    assert figures["aliased_bytes"] >= figures["state_bytes"] - figures["gradient_bytes"]
    assert figures["output_bytes"] - figures["aliased_bytes"] < 2**14
    assert 0 < figures["held_bytes"] < figures["chip_bytes"]
    # Six operations for each weight of a matrix and token, and the attention.
    assert figures["operations"] > 6 * 32 * 16 * (4 * 16 + 3 * 16 + 32)
    assert figures["tokens_per_second"] > 0


@pytest.fixture(scope="module")
def four_cores(tmp_path_factory):
    """The output and the figures of the check of a tiny model on four cores."""
    path = tmp_path_factory.mktemp("four_cores") / "check.json"
    command = ["tpu-check", "--config", "quickstart", "--cores", "4", "--json", str(path)]
    for key, value in {**TINY, "data.batch_size": 8}.items():
        command += ["--set", f"{key}={value}"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert cli.main(command) == 0
    return printed.getvalue(), json.loads(path.read_text())


@pytest.mark.end_to_end
@needs_compiler
def test_cores_sum_all_gradients_and_the_statistics_of_clusters(four_cores):
    _, figures = four_cores
    # The number and the sum of the members, of depth 8, of 2 clusters, of queries and of keys.
    statistics = 2 * 2 * (1 + 8)
    assert figures["summed_bytes"] == 4 * (figures["parameters"] + statistics)
    assert figures["wire_bytes"] == 2 * 3 / 4 * figures["summed_bytes"]


@pytest.mark.end_to_end
@needs_compiler
def test_cores_share_the_batch_and_a_step_takes_the_longest_time(four_cores):
    printed, figures = four_cores
    assert figures["batch_size"] == 2 and figures["tokens"] == 32
    times = [figures[f"{name}_seconds"] for name in ("operation", "access", "wire")]
    assert figures["step_seconds"] == max(times) and min(times) > 0
    assert figures["wire_share"] == times[2] / max(times)
    assert "compiles for v5e:2x2, all 4 cores, and fits" in printed
    assert "bytes to other cores" in printed and "MiB over 4 cores" in printed
    assert "not included: the input\n" in printed


@pytest.mark.parametrize(
    "options, message",
    [
        (["--cores", "0"], "--cores must be at least 1. Received: 0"),
        (["--cores", "3"], "--cores must be 1, or 4 for all of v5e:2x2. Received: 3"),
        (["--cores", "4", "--kernels"], "omit --cores"),
        (["--topology", "v9:2x2"], "--topology must name a chip among v4, v5e"),
        (["--batch", "0"], "--batch must be at least 1. Received: 0"),
        (["--set", "model.hidden=3"], "unknown key model.hidden"),
    ],
)
def test_wrong_options_are_told_in_one_line(options, message, capsys, monkeypatch):
    monkeypatch.setattr(check, "COMPILER", {})
    assert cli.main(["tpu-check", "--config", "quickstart", *options]) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_missing_package_is_named_with_what_to_install(capsys, monkeypatch):
    monkeypatch.setattr(check, "COMPILER", {"no-such-compiler": "1.2"})
    assert cli.main(["tpu-check", "--config", "quickstart"]) == 1
    error = capsys.readouterr().err
    assert "pip install no-such-compiler==1.2" in error and error.count("\n") == 1


def test_the_report_has_the_memory_and_the_rates():
    result = {"check": "tpu", "config": "books", "parameters": 2000, "compute": "float32"}
    result |= {"optimizer": "adam", "batch_size": 2, "tokens": 64, "topology": "v5e:2x2"}
    result |= {f"{name}_bytes": 2**30 for name in ("argument", "output", "aliased", "code")}
    result |= {"temporary_bytes": 3 * 2**30, "held_bytes": 4 * 2**30, "chip_bytes": 16 * 2**30}
    result |= {"operations": 2e12, "operation_seconds": 0.01, "accessed_bytes": 2**31}
    result |= {"access_seconds": 0.02, "tokens_per_second": 3200.0, "gradient_bytes": 2**20}
    result |= {"cores": 1}
    lines = [line.split() for line in tpu_check.report({**result, "loops": 2}).splitlines()]
    assert "books: 2,000 parameters, float32 compute, adam, 2 x 32 tokens" in " ".join(lines[0])
    assert lines[1][-5:] == ["fits:", "25%", "of", "its", "memory"]
    assert ["held", "4.000", "of", "16", "GiB"] in lines
    assert ["operations,", "bfloat16", "2.000", "T", "10.00"] in lines
    assert ["bytes", "accessed", "2.000", "GiB", "20.00"] in lines
    assert " ".join(lines[-1]).endswith("a step), every round but one of 2 loops")


def test_the_report_of_kernels_is_two_lines():
    result = {"check": "tpu_kernels", "config": "books", "parameters": 2000, "compute": "float32"}
    result |= {"optimizer": "adam", "batch_size": 2, "tokens": 64}
    assert tpu_check.report(result).splitlines()[1:] == [
        "every operation of the training step has a TPU kernel"
    ]
