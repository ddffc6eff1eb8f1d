import os
import pty
import sys
import time

from rt_keras import progress


def test_a_terminal_shows_a_bar_and_what_is_no_terminal_one_line(capsys, monkeypatch):
    assert list(progress.track("abc", "spelling", verbose=0)) == ["a", "b", "c"]
    for number in progress.track(range(2), "counting [sheep]", 2, "sheep"):
        print(number)
    assert capsys.readouterr() == ("0\n1\n", "counting [sheep]\n")
    reader, terminal = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with open(reader, "rb", buffering=0) as shown, open(terminal, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        for _ in progress.track(range(3), "counting [sheep]", 3, "sheep"):
            time.sleep(0.15)
        stream.flush()
        text = os.read(shown.fileno(), 65536).decode()
    assert "counting [sheep]" in text and "2/3 sheep" in text
