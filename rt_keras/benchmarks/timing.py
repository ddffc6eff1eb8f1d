"""Times of functions that take turns, so that what else the machine does hits all alike."""


def alternate(runs, repeats, seconds=10.0):
    """Has functions run several times each, one after the other in rounds.

    Args:
        runs: dictionary of functions without arguments, which return the seconds they took; or
            None where they failed and are not to be run again.
        repeats: the most times that each is run.
        seconds: a function that has run for as long as this is not run again: one run of full
            attention over a long sequence is enough.

    Returns:
        For each name the list of what its function returned, at least one.

    >>> alternate({"quick": lambda: 1.0, "slow": lambda: 60.0}, repeats=3)
    {'quick': [1.0, 1.0, 1.0], 'slow': [60.0]}
    """
    found = {name: [] for name in runs}
    waiting = dict(runs)
    while waiting:
        for name, run in list(waiting.items()):
            times = found[name]
            times.append(run())
            if times[-1] is None or len(times) >= repeats or sum(times) >= seconds:
                del waiting[name]
    return found
