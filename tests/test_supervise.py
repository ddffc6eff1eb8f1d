import sys

from rt_keras import supervise


def test_when_one_fails_the_others_are_told_to_end(tmp_path, capfd):
    stops = f"""
import pathlib, signal, sys
def stop(number, _):
    print("stopped", flush=True)
    sys.exit(128 + number)
signal.signal(signal.SIGTERM, stop)
pathlib.Path({str(tmp_path / "up")!r}).touch()
while True: signal.pause()
"""
    fails = f"""
import pathlib, time
while not pathlib.Path({str(tmp_path / "up")!r}).exists(): time.sleep(0.01)
exit("no room")
"""
    with supervise.caught_signals() as events:
        commands = [([sys.executable, "-c", script], {}) for script in (stops, fails)]
        failure = supervise.run_together(commands, events)
    assert failure == supervise.Failure(1, 1, ["no room"], False)
    assert capfd.readouterr().out == "stopped\n"
