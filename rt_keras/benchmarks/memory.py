"""The memory that a process has held."""

import resource
import sys
from pathlib import Path


def resident_peak():
    """The most memory, in bytes, that this process has held.

    >>> resident_peak() > 10**6
    True
    """
    status = Path("/proc/self/status")
    if status.exists():
        # On Linux the figure of getrusage may be inherited from the process that started this one.
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(fields["VmHWM"].split()[0]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
