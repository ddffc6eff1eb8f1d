"""A terminal to run programs in, as their users see it."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading


def run_in_terminal(arguments, width=80):
    """Runs Python with these arguments in a terminal.

    Returns:
        The exit status, and the list of lines that were drawn, redrawn ones included, without
        control sequences.
    """
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    environment = {**os.environ, "TERM": "xterm"}
    environment.pop("COLUMNS", None)
    process = subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment,
        start_new_session=True,
    )
    os.close(slave)
    chunks = []
    reader = threading.Thread(target=_read, args=(master, chunks))
    reader.start()
    status = process.wait()
    reader.join()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", b"".join(chunks).decode())
    return status, [line for line in re.split(r"[\r\n]+", text) if line]


def _read(master, chunks):
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # The last writer is gone.
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(master)
