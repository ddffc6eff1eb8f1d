"""Timing of functions that take turns, so that other load on the machine affects all of them."""


def alternate(runs, repeats, seconds=10.0):
    """Runs functions several times each, in rounds.

    Args:
        runs: dictionary of functions without arguments. Each returns the seconds that it took, or
            None if it failed and should not run again.
        repeats: int, the maximum number of runs of each function.
        seconds: float, the total time after which a function does not run again, since one run of
            full attention over a long sequence is enough. Defaults to 10.0.

    Returns:
        A dictionary from names to lists of the values returned, at least one.

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
