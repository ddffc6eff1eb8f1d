"""The peak memory of a process."""

import contextlib
import resource
import sys
from pathlib import Path


def resident_peak():
    """Returns the peak resident memory of this process, in bytes.

    >>> resident_peak() > 10**6
    True
    """
    status = Path("/proc/self/status")
    if status.exists():
        # On Linux, getrusage may give the peak of the parent process.
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(fields["VmHWM"].split()[0]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def resident():
    """Returns the current resident memory of this process, in bytes, and resets the peak.

    The peak stays unchanged if the system does not allow a reset.

    >>> 10**6 < resident() <= resident_peak()
    True
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return resident_peak()
    return int(statm.read_text().split()[1]) * resource.getpagesize()
