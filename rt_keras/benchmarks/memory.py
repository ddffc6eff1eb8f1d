"""The peak memory of a process."""

import resource
import sys
from pathlib import Path


def resident_peak():
    """The peak resident memory of this process, in bytes.

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
