import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rt_keras import supervise
from tests.terminal import run_in_terminal

# Waits for a signal, and ends as `train` does after one.
STOPS = """
import os, signal, sys
def stop(number, _):
    print("stopped", flush=True)
    sys.exit(128 + number)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, stop)
"""
STUBBORN = "import os, signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
# The file is whole once it exists, since a signal may come at that moment.
UP = """
import pathlib, sys
part = pathlib.Path(sys.argv[1] + ".part")
part.write_text(str(os.getpid()))
part.rename(sys.argv[1])
"""
WAIT_FOR_IT = """
import pathlib, sys, time
while not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.01)
"""
FOREVER = "while True: signal.pause()\n"


def run(*scripts, up=None, grace=10.0):
    """Runs scripts together. They create the file `up` to signal that they are ready."""
    with supervise.caught_signals() as events:
        return supervise.run_together(
            [([sys.executable, "-c", script, str(up)], {}) for script in scripts], events, grace
        )


def is_running(pid):
    """Returns whether a process has not ended. A zombie has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_all_succeed_and_the_first_is_shown(capfd):
    assert run("print('first')", "print('second')") is None
    assert capfd.readouterr() == ("first\n", "")


def test_the_first_has_the_terminal_of_the_command():
    code = """
import sys
from rt_keras import __main__, supervise
__main__.silence_logs()
script = "import sys; print(sys.stdout.isatty(), file=sys.stderr); print(sys.stderr.isatty())"
with supervise.caught_signals() as events:
    supervise.run_together([([sys.executable, "-c", script], {})], events)
"""
    assert run_in_terminal(["-c", code]) == (0, ["True", "True"])


def test_processes_have_their_variables(monkeypatch):
    monkeypatch.setenv("COMMON", "1")
    script = "import os; assert os.environ['COMMON'] + os.environ['OWN'] == '12'"
    with supervise.caught_signals() as events:
        command = ([sys.executable, "-c", script], {"OWN": "2"})
        assert supervise.run_together([command], events) is None


def test_when_one_fails_the_others_are_told_to_end(tmp_path, capfd):
    failure = run(
        STOPS + UP + FOREVER, WAIT_FOR_IT + "print('no room'); exit(3)", up=tmp_path / "up"
    )
    assert failure == supervise.Failure(1, 3, ["no room"], False)
    assert capfd.readouterr().out == "stopped\n"


def test_those_that_do_not_end_are_killed(tmp_path):
    up = tmp_path / "up"
    failure = run(WAIT_FOR_IT + "exit(4)", STUBBORN + UP + FOREVER, up=up, grace=0.1)
    assert failure == supervise.Failure(0, 4, [], False)
    assert not is_running(up.read_text())


def test_a_process_that_is_killed_has_the_status_of_a_shell():
    assert run("import os; os.kill(os.getpid(), 9)").status == 137


def test_the_end_of_much_output_is_kept():
    failure = run("", "for number in range(10**5): print(number)\nexit(1)")
    last = range(10**5 - supervise.KEPT_LINES, 10**5)
    assert failure.lines == [str(number) for number in last]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_and_awaited(tmp_path, number):
    tell = WAIT_FOR_IT + f"os.kill(os.getppid(), {int(number)})\n"
    # It takes longer than the grace of a failure.
    slow = STOPS.replace("    sys.exit", "    import time; time.sleep(0.3)\n    sys.exit")
    failure = run(STOPS + tell + FOREVER, slow + UP + FOREVER, up=tmp_path / "up", grace=0.0)
    assert (failure.status, failure.stopped) == (128 + number, True)
    assert not is_running((tmp_path / "up").read_text())


def test_what_ends_well_after_a_signal_is_no_failure(tmp_path):
    ends = "import os, signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit())\n"
    tell = WAIT_FOR_IT + "os.kill(os.getppid(), signal.SIGTERM)\n"
    assert run(ends + tell + FOREVER, ends + UP + FOREVER, up=tmp_path / "up") is None


def test_a_second_signal_kills(tmp_path):
    twice = "signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getppid(), signal.SIGINT))\n"
    tell = WAIT_FOR_IT + "os.kill(os.getppid(), signal.SIGTERM)\n"
    failure = run(STUBBORN + twice + tell + FOREVER, STUBBORN + UP + FOREVER, up=tmp_path / "up")
    assert (failure.status, failure.stopped) == (137, True)
    assert not is_running((tmp_path / "up").read_text())


def test_signals_are_handled_as_before_afterwards():
    before = signal.getsignal(signal.SIGTERM)
    assert run("") is None
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_cannot_be_started_leaves_nothing(tmp_path):
    sleeper = ([sys.executable, "-c", "import time; time.sleep(60)"], {})
    with supervise.caught_signals() as events, pytest.raises(FileNotFoundError):
        supervise.run_together([sleeper, ([str(tmp_path / "none")], {})], events)
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children]
    assert not [command for command in commands if b"time.sleep(60)" in command]


@pytest.mark.skipif(sys.platform != "linux", reason="the system kills them on Linux alone")
def test_nothing_outlives_a_process_that_is_killed(tmp_path):
    code = """
import sys
from rt_keras import supervise
with supervise.caught_signals() as events:
    supervise.run_together([([sys.executable, "-c", *sys.argv[1:]], {})], events)
"""
    up = tmp_path / "up"
    with subprocess.Popen([sys.executable, "-c", code, STUBBORN + UP + FOREVER, str(up)]) as parent:
        while not (up.exists() and up.read_text()):
            time.sleep(0.01)
        assert is_running(up.read_text())
        parent.kill()
    deadline = time.monotonic() + 10
    while is_running(up.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
