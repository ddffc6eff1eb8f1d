import os
import pty
import sys

from rt_keras.data import progress


def test_a_terminal_shows_a_bar_and_what_is_no_terminal_one_line(capsys, monkeypatch):
    for number in progress.track(range(2), "counting", 2):
        print(number)
    assert capsys.readouterr() == ("0\n1\n", "counting\n")
    reader, terminal = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with open(reader, "rb", buffering=0) as shown, open(terminal, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        assert list(progress.track(range(3), "counting", 3)) == [0, 1, 2]
        stream.flush()
        text = os.read(shown.fileno(), 65536).decode()
    assert "counting" in text and "\r" in text
