import json

import pytest

from rt_keras import cli


def figure(kind, seconds, peak=10**8, **names):
    shared = {"kind": kind, "package": "rt_keras", "direction": "forward", "length": 1024}
    return {**shared, **names, "seconds": seconds, "peak_bytes": peak}


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


def test_figures_of_ours_that_are_slower_or_larger_fail_by_name(compare):
    before = [
        figure("full", 1.0),
        figure("local", 1.0),
        figure("gone", 1.0),
        figure("torch", 1.0, package="torch"),
    ]
    after = [figure("full", 1.09), figure("local", 1.0), figure("new", 9.0)]
    after += [figure("torch", 2.0, package="torch"), figure("local", 9.0, length=2048)]
    status, output, error = compare(result(*before), result(*after, machine="another"))
    assert (status, error) == (0, "") and "WORSE" not in output
    assert output.startswith("machine differs: one / another\n") and "2,048" not in output
    after[:2] = figure("full", 1.2), figure("local", 1.0, 2 * 10**8)
    status, output, error = compare(result(*before), result(*after))
    assert status == 1 and error.splitlines()[-1].startswith("rt-keras: error: 2 of ")
    assert "by more than 10%" in error
    worse = [line.split()[:2] for line in output.splitlines() if "WORSE" in line]
    assert worse == [["1,024", "full"], ["1,024", "local"]]
    assert compare(result(*before), result(*after), "--tolerance", 1.5)[0] == 0


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
