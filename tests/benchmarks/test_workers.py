import os

import pytest

from rt_keras.benchmarks import workers

HOLDER = """
import os
import sys
import time

large = bytearray(b"1") * 10**8  # held by the import, which does not count


def prepare(megabytes=1, seconds=0.0, fail_at=None, message=None):
    print("what a library prints is no answer")
    runs = 0

    def run():
        nonlocal runs
        runs += 1
        if runs == fail_at:
            sys.exit(message) if message else os.kill(os.getpid(), 9)
        time.sleep(seconds)
        return len(bytearray(b"1") * (megabytes * 10**6))

    return run


def threads(wanted):
    assert os.environ["OMP_NUM_THREADS"] == os.environ["TF_NUM_INTRAOP_THREADS"] == wanted
    return lambda: None
"""


@pytest.fixture(autouse=True)
def holder(tmp_path, monkeypatch):
    """A module that holds 100 MB once imported, and more when it runs."""
    (tmp_path / "holder.py").write_text(HOLDER)
    path = [str(tmp_path), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))


def contender(**arguments):
    return {"target": "holder:prepare", "arguments": arguments, "imports": ()}


def test_a_process_makes_a_run_whenever_told_and_says_how_long_it_took():
    with workers.worker(1, **contender(seconds=0.05)) as run:
        for _ in range(3):
            assert run()["seconds"] >= 0.05


def test_the_peak_is_that_of_the_runs_alone():
    parent = bytearray(b"1") * (3 * 10**8)
    for megabytes in (50, 200):
        with workers.worker(1, **contender(megabytes=megabytes)) as run:
            assert abs(run()["peak_bytes"] / 1e6 - megabytes) < 10
    assert len(parent) == 3 * 10**8


def test_modules_that_are_needed_are_imported_first(tmp_path):
    (tmp_path / "needed.py").write_text("large = bytearray(b'1') * 10**8\n")
    (tmp_path / "user.py").write_text(
        "def prepare():\n    import needed\n    return lambda: len(needed.large)\n"
    )
    with workers.worker(1, "user:prepare", {}, ["needed"]) as run:
        assert run()["peak_bytes"] < 10**7


def test_a_process_computes_with_as_many_threads_as_it_is_told():
    with workers.worker(3, "holder:threads", {"wanted": "3"}, ()) as run:
        run()


def test_a_process_that_fails_says_why():
    with (
        pytest.raises(RuntimeError, match="^no room$"),
        workers.worker(1, **contender(fail_at=1, message="no room")) as run,
    ):
        run()
    with workers.worker(1, **contender(fail_at=2)) as run:
        run()
        with pytest.raises(RuntimeError, match="signal 9, perhaps because memory ran out"):
            run()


def test_those_that_fail_are_left_out_and_the_others_have_medians(capsys):
    contenders = {
        "slow": contender(seconds=0.05, megabytes=50),
        "gone": contender(fail_at=1, message="no room"),
        "later": contender(fail_at=3, message="no more"),
        "quick": contender(),
    }
    found = workers.contest(contenders, 3, 1, "n = 8, ")
    assert set(found) == {"slow", "quick"}
    for figure in found.values():
        assert len(figure["runs"]) == 3
        assert figure["seconds"] == sorted(figure["runs"])[1]
    assert found["slow"]["seconds"] >= 0.05
    assert found["slow"]["peak_bytes"] > 4 * 10**7
    said = capsys.readouterr().err
    assert "n = 8, gone: left out: no room" in said and "later: left out: no more" in said
    assert "n = 8, quick: ready, peak" in said and "s, median of 3" in said
