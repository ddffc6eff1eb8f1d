"""Progress of long computations: one bar in a terminal, one line everywhere else."""

import contextlib
import functools
import sys


@contextlib.contextmanager
def bar(description, total=None, unit="", completed=0, verbose=1):
    """Shows the progress of a computation on standard error.

    In a terminal, it draws a bar with the elapsed and the remaining time, which disappears at the
    end. Printed output appears above it, and a nested bar replaces it. Elsewhere, such as in a file
    or a notebook, it prints `description` once, without control characters.

    Args:
        description: string, the description of the computation.
        total: int, the total number of units. Defaults to None, unknown.
        unit: string, the unit, in the plural. Defaults to "".
        completed: int, the number of units that are already completed. Defaults to 0.
        verbose: int. 0 shows nothing, 1 shows a bar in a terminal and the line elsewhere, 2 prints
            the line everywhere. Defaults to 1.

    Yields:
        `rich.progress.Progress.update` for this bar, a function with the optional keyword arguments
        `advance` (units since the last call), `completed` (units in total), `description` and
        `note` (text next to the bar).

    >>> with bar("counting", total=3, verbose=0) as update:
    ...     for number in range(3):
    ...         update(advance=1, note=f"at {number}")
    """
    from rich.progress import Progress

    drawn = is_drawn(verbose)
    if verbose and not drawn:
        say(description)
    progress = Progress(
        *_columns(total, unit),
        console=_console(),
        transient=True,
        disable=not drawn,
        redirect_stdout=in_terminal(sys.stdout),
    )
    with _alone(progress) if drawn else contextlib.nullcontext():
        task = progress.add_task(description, total=total, completed=completed, note="")
        yield functools.partial(progress.update, task)


# The bars on the screen, the innermost last.
_drawn = []


@contextlib.contextmanager
def _alone(progress):
    """Draws a bar that replaces the bar around it."""
    outer = _drawn[-1:]
    for other in outer:
        other.stop()
    _drawn.append(progress)
    try:
        with progress:
            yield
    finally:
        _drawn.pop()
        for other in outer:
            other.start()


def track(values, description, total=None, unit="", verbose=1):
    """Yields the values of an iterable and shows a `bar` that counts them.

    Args:
        values: iterable.
        description, total, unit, verbose: see `bar`.

    >>> list(track("abc", "spelling", verbose=0))
    ['a', 'b', 'c']
    """
    with bar(description, total, unit, verbose=verbose) as update:
        for value in values:
            yield value
            update(advance=1)


def say(line):
    """Prints a line on standard error at once.

    Args:
        line: string.
    """
    print(line, file=sys.stderr, flush=True)


@functools.cache
def say_once(line):
    """Prints a line on standard error, once: a data set may be read many times.

    Args:
        line: string.
    """
    say(line)


def is_drawn(verbose=1):
    """Returns whether a `bar` of this `verbose` is drawn.

    >>> is_drawn(verbose=2)
    False
    """
    return verbose == 1 and in_terminal(sys.stderr)


def in_terminal(stream):
    """Returns whether a text stream is a terminal that can redraw a line.

    >>> import io
    >>> in_terminal(io.StringIO())
    False
    """
    return stream.isatty() and not _console().is_dumb_terminal


def duration(seconds):
    """Formats a duration as hours, minutes and seconds.

    >>> duration(3725.4), duration(65)
    ('1:02:05', '0:01:05')
    """
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def _console():
    from rich.console import Console

    return Console(stderr=True)


def _columns(total, unit):
    """Returns the columns of a bar. In a narrow terminal, the bar itself shrinks first."""
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.table import Column

    count = "{task.completed:,.0f}" + ("" if total is None else "/{task.total:,.0f}")
    known = [TextColumn("left:"), TimeRemainingColumn(table_column=Column(no_wrap=True))]
    return [
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        *([TextColumn(f"{count} {unit}", markup=False)] if unit else []),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(table_column=Column(no_wrap=True)),
        *(known if total is not None else []),
    ]
