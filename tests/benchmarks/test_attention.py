import argparse
import json

import pytest

from rt_keras.benchmarks import attention, kinds


def parse(*options):
    parser = argparse.ArgumentParser()
    attention.add_arguments(parser)
    return parser.parse_args([str(option) for option in options])


@pytest.mark.parametrize(
    "options, message",
    [
        (["--lengths", 1000], "multiples of --window 256.*Received: 1000"),
        (["--lengths", 0], "Received: 0"),
        (["--lengths", -256], "Received: -256"),
        (["--window", 0], "--window must be at least 1. Received: 0"),
        (["--repeats", 0], "--repeats must be at least 1"),
        (["--heads", -1], "--heads must be at least 1"),
        (["--kinds", "full", "nearst"], "--kinds must be among full, local,.* Received: nearst"),
        (["--plot", "figure.txt"], "--plot must end in .png or .svg or .pdf"),
        (["--json", "/"], "--json must name a file that can be written"),
        (["--json", __file__ + "/figures.json"], "--json must name a file that can be written"),
    ],
)
def test_options_out_of_range_are_refused_before_anything_runs(options, message):
    with pytest.raises(ValueError, match=message) as error:
        attention.main(parse(*options))
    assert "\n" not in str(error.value)


def test_the_defaults_are_the_published_comparison():
    args = parse()
    attention.check(args)
    assert args.lengths == (1024, 2048, 4096, 8192, 16384, 32768)
    assert (args.heads, args.depth, args.window) == (8, 64, 256)
    assert tuple(args.kinds) == attention.KINDS == tuple(kinds.ATTENTION)


@pytest.mark.slow
def test_table_json_and_plot_of_a_small_run(tmp_path, capsys):
    options = ["--kinds", "nearest_shared", "--lengths", 32, "--window", 16]
    options += ["--heads", 2, "--depth", 4, "--repeats", 3]
    options += ["--json", tmp_path / "new" / "a.json", "--plot", tmp_path / "a.png"]
    attention.main(parse(*options))

    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1].split()[:3] == ["32", "nearest", "shared"]
    assert "n = 32 nearest_shared, forward + backward: peak" in printed.err
    result = json.loads((tmp_path / "new" / "a.json").read_text())
    assert "cores of" in result["machine"]
    assert [figure["direction"] for figure in result["figures"]] == ["forward", "forward_backward"]
    for figure in result["figures"]:
        assert (figure["kind"], figure["length"], figure["clusters"]) == ("nearest_shared", 32, 2)
        assert figure["seconds"] == sorted(figure["runs"])[1] > 0
        assert figure["times_as_fast_as_full"] is None
        assert figure["peak_bytes"] > 10**6
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


SMALL = {"heads": 1, "depth": 4, "window": 4, "repeats": 1}


def test_times_are_compared_with_full_attention_at_the_same_length(monkeypatch):
    monkeypatch.setattr(attention.memory, "peak_above_imports", lambda module, point: 5 * 10**6)
    result = attention.measure([8, 4], ["local", "full"], **SMALL)
    found = {(f["length"], f["direction"], f["kind"]): f for f in result["figures"]}
    assert len(found) == 8
    for (length, direction, _), figure in found.items():
        full = found[length, direction, "full"]["seconds"]
        assert figure["times_as_fast_as_full"] == full / figure["seconds"]
    slopes = {(slope["quantity"], slope["slope"]) for slope in result["slopes"]}
    assert len(result["slopes"]) == 8 and ("peak_bytes", 0.0) in slopes


def test_a_point_that_fails_is_left_out(monkeypatch, capsys):
    def killed(module, point):
        if point["kind"] == "full":
            raise RuntimeError("killed by signal 9, perhaps for want of memory")
        return 5 * 10**6

    monkeypatch.setattr(attention.memory, "peak_above_imports", killed)
    result = attention.measure([8], ["full", "local"], **SMALL)
    assert {figure["kind"] for figure in result["figures"]} == {"local"}
    assert result["figures"][0]["times_as_fast_as_full"] is None
    assert "n = 8 full, forward: left out: killed by signal 9" in capsys.readouterr().err
    assert attention.report(result).splitlines()[-1].split()[3:5] == ["-", "5"]
    with pytest.raises(RuntimeError, match="every point failed"):
        attention.measure([8], ["full"], **SMALL)


def test_a_row_whose_gradient_failed_shows_the_forward_pass():
    figure = {"kind": "full", "direction": "forward", "length": 1024, "clusters": 4}
    figure |= {"seconds": 0.5, "times_as_fast_as_full": 1.0, "peak_bytes": 10**9}
    settings = {"heads": 8, "window": 256, "depth": 64}
    result = {"machine": "a machine", "settings": settings, "figures": [figure]}
    assert attention.report(result).splitlines()[-1].split() == [
        *["1,024", "full", "0.5000", "1.0", "1,000"],
        *["-", "-", "-"],
    ]
