import pytest

from rt_keras.benchmarks import workers

HOLDER = """
import os
import sys
import time

large = bytearray(b"1") * 10**8  # held by the import, which does not count


def prepare(megabytes=1, seconds=0.0, fail_at=None, message=None):
    assert os.environ["OMP_NUM_THREADS"] == os.environ["TF_NUM_INTRAOP_THREADS"] == "3"
    runs = 0

    def run():
        nonlocal runs
        runs += 1
        if runs == fail_at:
            if message:
                raise OSError(message)
            os.kill(os.getpid(), 9)
        time.sleep(seconds)
        return len(bytearray(b"1") * (megabytes * 10**6))

    return run
"""


@pytest.fixture(autouse=True)
def holder(tmp_path, monkeypatch):
    """A module that holds 100 MB once imported, and more when it runs."""
    (tmp_path / "holder.py").write_text(HOLDER)
    monkeypatch.syspath_prepend(tmp_path)


def contender(**arguments):
    return workers.Contender("holder:prepare", arguments)


def test_the_peak_is_that_of_the_runs_alone():
    parent = bytearray(b"1") * (3 * 10**8)
    for megabytes in (50, 200):
        found = workers.contest({"held": contender(megabytes=megabytes)}, 1, 3)
        assert abs(found["held"]["peak_bytes"] / 1e6 - megabytes) < 10
    assert len(parent) == 3 * 10**8


def test_those_that_fail_are_left_out_and_the_others_have_medians(capsys):
    contenders = {
        "slow": contender(seconds=0.05, megabytes=50),
        "gone": contender(fail_at=1, message="no room"),
        "later": contender(fail_at=3),
        "quick": contender(),
    }
    found = workers.contest(contenders, 3, 3, "n = 8, ")
    assert set(found) == {"slow", "quick"}
    for figure in found.values():
        assert len(figure["runs"]) == 3
        assert figure["seconds"] == sorted(figure["runs"])[1]
    assert found["slow"]["seconds"] >= 0.05
    assert found["slow"]["peak_bytes"] > 4 * 10**7
    said = capsys.readouterr().err
    assert "n = 8, gone: left out: no room" in said and "later: left out: " in said
    assert "ended, perhaps because memory ran out" in said
    assert "n = 8, quick: ready, peak" in said and "s, median of 3" in said


def test_functions_take_turns():
    called = []
    runs = {name: lambda name=name: called.append(name) or 1.0 for name in ("a", "b")}
    workers.alternate(runs, repeats=2)
    assert called == ["a", "b", "a", "b"]
