import json

import pytest

from rt_keras import cli


def figure(kind, seconds, peak=10**8, package="rt_keras", **names):
    figures = {"kind": kind, "package": package, "direction": "forward", "length": 1024}
    return {**figures, **names, "seconds": seconds, "peak_bytes": peak}


def result(*figures, **more):
    found = {"benchmark": "attention", "machine": "one", "version": "0.1", "rivals": {}}
    return {**found, "settings": {"window": 256}, "figures": list(figures), **more}


@pytest.fixture
def compare(tmp_path, capsys):
    """Runs the command on two results; returns its status, output and error output."""

    def run(before, after, *options):
        for name, content in (("a.json", before), ("b.json", after)):
            (tmp_path / name).write_text(json.dumps(content))
        paths = [str(tmp_path / name) for name in ("a.json", "b.json")]
        status = cli.main(["benchmark", "compare", *paths, *map(str, options)])
        return status, *capsys.readouterr()

    return run


def test_figures_within_the_tolerance_are_no_regression(compare, tmp_path):
    before = result(figure("full", 1.0), figure("local", 1.0), figure("gone", 1.0))
    after = result(figure("full", 1.09), figure("local", 0.5, 2 * 10**7), figure("new", 9.0))
    status, output, error = compare(before, after, "--json", tmp_path / "c.json")
    assert (status, error) == (0, "") and "WORSE" not in output and "differs" not in output
    rows = json.loads((tmp_path / "c.json").read_text())["figures"]
    assert [(row["kind"], row["quantity"], row["ratio"]) for row in rows] == [
        ("full", "seconds", 1.09),
        ("full", "peak_bytes", 1.0),
        ("local", "seconds", 0.5),
        ("local", "peak_bytes", 0.2),
    ]


def test_a_figure_that_is_slower_or_larger_fails_by_name(compare):
    before = result(figure("full", 1.0), figure("local", 1.0, 10**8))
    after = result(figure("full", 1.2), figure("local", 1.0, 2 * 10**8))
    status, output, error = compare(before, after)
    assert status == 1 and "Traceback" not in error
    assert error.splitlines()[-1].startswith("rt-keras: error: 2 of 4 figures are worse in ")
    assert "by more than 10%" in error
    worse = [line.split() for line in output.splitlines() if "WORSE" in line]
    assert [line[:2] for line in worse] == [["1,024", "full"], ["1,024", "local"]]
    assert compare(before, after, "--tolerance", 1.5)[0] == 0


def test_a_rival_that_is_slower_is_no_regression_of_ours(compare):
    before = result(figure("torch_full", 1.0, package="torch"))
    after = result(figure("torch_full", 2.0, package="torch"))
    status, output, _ = compare(before, after)
    assert status == 0 and "2.00" in output


def test_the_same_kind_at_other_lengths_and_directions_is_another_figure(compare):
    before = result(figure("full", 1.0), figure("full", 3.0, direction="forward_backward"))
    after = result(
        figure("full", 9.0, length=2048), figure("full", 3.0, direction="forward_backward")
    )
    status, output, _ = compare(before, after)
    assert status == 0 and "forward + backward" in output and "2,048" not in output


def test_figures_without_a_length_are_compared_by_their_kind(compare):
    found = {"kind": "packing", "package": "rt_keras", "seconds": 1.0, "peak_bytes": 10**8}
    before = result(found, benchmark="input")
    status, output, _ = compare(before, result({**found, "seconds": 2.0}, benchmark="input"))
    assert status == 1 and output.splitlines()[-1].split()[:3] == ["-", "packing", "1.00000"]


def test_machines_versions_and_settings_that_differ_are_named(compare):
    before = result(figure("full", 1.0))
    after = result(figure("full", 1.0), machine="another", settings={"window": 128})
    status, output, _ = compare(before, after)
    assert status == 0
    assert output.splitlines()[:2] == [
        "machine differs: one / another",
        "window differs: 256 / 128",
    ]


@pytest.mark.parametrize(
    "after, message",
    [
        (result(figure("full", 1.0), benchmark="model"), "b.json of model"),
        (result(figure("local", 1.0)), "A and B must share figures"),
        ({"benchmark": "quality", "figures": [{"kind": "full"}]}, "b.json is not from rt-keras"),
        ([], "b.json is damaged"),
    ],
)
def test_files_that_cannot_be_compared_are_refused(compare, after, message):
    status, _, error = compare(result(figure("full", 1.0)), after)
    assert status == 1 and message in error and len(error.splitlines()) == 1


def test_a_tolerance_below_nothing_is_refused(compare):
    status, _, error = compare(result(), result(), "--tolerance", -1)
    assert status == 1 and "--tolerance must be at least 0. Received: -1" in error


def test_a_file_that_is_missing_is_named(capsys, tmp_path):
    missing = str(tmp_path / "missing.json")
    assert cli.main(["benchmark", "compare", missing, missing]) == 1
    assert "missing.json" in capsys.readouterr().err
