"""The cores that this process may use."""

import os


def count_cores():
    """Returns the number of processor cores that this process may use.

    >>> count_cores() >= 1
    True
    """
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count()
