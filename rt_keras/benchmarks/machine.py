"""A description of the machine that a benchmark runs on."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

from rt_keras.machine import count_cores


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
