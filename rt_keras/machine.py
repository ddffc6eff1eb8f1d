"""The memory and the cores that this process may use."""

import os
from pathlib import Path


def machine_memory():
    """Returns the bytes of memory that this process may use.

    >>> machine_memory() > 1e9
    True
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        limit = Path("/sys/fs/cgroup") / name
        if limit.is_file() and limit.read_text().strip().isdigit():
            memory = min(memory, int(limit.read_text()))
    return memory


def count_cores():
    """Returns the number of processor cores that this process may use.

    >>> count_cores() >= 1
    True
    """
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count()
