"""Times of functions that take turns, so that what else the machine does hits all alike."""

import time


def alternate(runs, repeats, seconds=10.0):
    """Times each function several times, one after the other in rounds.

    Each runs once before, untimed, which compiles it.

    Args:
        runs: dictionary of functions without arguments.
        repeats: the most times that each is timed.
        seconds: a function that has been timed for as long as this is not run again: one run of
            full attention over a long sequence is enough.

    Returns:
        For each name the list of its times in seconds, at least one.

    >>> times = alternate({"nothing": lambda: None}, repeats=3)
    >>> len(times["nothing"])
    3
    """
    for run in runs.values():
        run()
    times = {name: [] for name in runs}
    waiting = dict(runs)
    while waiting:
        for name, run in list(waiting.items()):
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
            if len(times[name]) >= repeats or sum(times[name]) >= seconds:
                del waiting[name]
    return times
