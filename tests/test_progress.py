import pytest

from rt_keras import progress
from tests.terminal import run_in_terminal

LOOP = """
import time
from rt_keras import progress
for _ in progress.track(range(3), "counting [sheep]", 3, "sheep", verbose={verbose}):
    print("one more")
    time.sleep(0.15)
print("done")
"""


def test_without_a_terminal_there_is_one_line(capsys):
    with progress.bar("counting", total=3) as update:
        update(advance=1, note="half way")
    assert capsys.readouterr() == ("", "counting\n")


def test_a_line_is_said_once(capsys):
    progress.say_once.cache_clear()
    for line in ("one", "two", "one"):
        progress.say_once(line)
    assert capsys.readouterr().err == "one\ntwo\n"


def test_verbose_0_is_silent(capsys):
    assert list(progress.track("abc", "spelling", verbose=0)) == ["a", "b", "c"]
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_terminal_shows_one_bar_that_fits_and_what_is_printed(width):
    status, lines = run_in_terminal(["-c", LOOP.format(verbose=1)], width)
    assert status == 0 and lines.count("one more") == 3 and lines[-1].strip() == "done"
    bars = [line for line in lines if line.startswith("counting")]
    assert len(bars) >= 3 and max(map(len, lines)) <= width
    assert any("2/3 sheep" in line for line in bars) or width == 40


def test_verbose_2_is_a_line_in_a_terminal_too():
    _, lines = run_in_terminal(["-c", LOOP.format(verbose=2)])
    assert lines == ["counting [sheep]", *["one more"] * 3, "done"]


def test_an_error_leaves_no_bar_behind():
    code = "from rt_keras import progress\nwith progress.bar('failing'): raise SystemExit(3)"
    status, lines = run_in_terminal(["-c", code])
    assert status == 3 and all(line.startswith("failing") for line in lines)


INSIDE = """
import time
from rt_keras import progress
with progress.bar("outer"):
    time.sleep(0.3)
    for _ in progress.track(range(2), "inner"):
        time.sleep(0.3)
    time.sleep(0.3)
print("done")
"""


def test_a_bar_inside_takes_the_place_of_the_other():
    status, lines = run_in_terminal(["-c", INSIDE])
    names = [line.split()[0] for line in lines]
    assert status == 0 and names[-1] == "done" and lines[-1].strip() == "done"
    order = [name for name, before in zip(names, [None, *names]) if name != before]
    assert order == ["outer", "inner", "outer", "done"]
