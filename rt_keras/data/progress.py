"""Bars for long loops, drawn by rich."""

import sys


def track(values, description, total=None, verbose=1):
    """Yields the values of an iterable, with a bar in a terminal and one line elsewhere.

    Both are on standard error. The bar disappears at the end.

    Args:
        values: iterable.
        description: string, the description of the loop.
        total: int, the number of values. Defaults to None, unknown.
        verbose: 0 to show nothing. Defaults to 1.

    Returns:
        An iterable.

    >>> list(track("abc", "spelling", verbose=0))
    ['a', 'b', 'c']
    """
    from rich import console, progress

    is_drawn = verbose and sys.stderr.isatty()
    if verbose and not is_drawn:
        print(description, file=sys.stderr, flush=True)
    shown = {"console": console.Console(stderr=True), "transient": True, "disable": not is_drawn}
    return progress.track(values, description, total, **shown)
