"""A description of the machine that a benchmark runs on, and the memory of a process."""

import contextlib
import os
import platform
import resource
import sys
from importlib.metadata import version
from pathlib import Path


def count_cores():
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def describe():
    """Describes cores, memory, accelerators and versions in one line.

    >>> " cores of " in describe() and "TensorFlow" in describe()
    True
    """
    import tensorflow as tf

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    others = [device for device in tf.config.list_physical_devices() if device.device_type != "CPU"]
    names = [
        tf.config.experimental.get_device_details(device).get("device_name", device.device_type)
        for device in others
    ]
    return (
        f"{count_cores()} cores of {_processor()}, {memory:.0f} GB of memory, "
        f"{' and '.join(names) or 'no accelerator'}, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}, TensorFlow {version('tensorflow')}"
    )


def _processor():
    """Returns the name of the processor, or its architecture if the name is unknown."""
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


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
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    return resident_peak()
