"""Text tables with right-aligned numbers and units in the headings."""


def table(columns, rows):
    """Formats rows as a text table of any width.

    Args:
        columns: dictionary from headings to format specifications of their values, such as
            `{"length": ",", "time (s)": ".4f"}`. An empty specification is for left-aligned
            strings. A heading may have several lines.
        rows: iterable of sequences, one value for each column; None is shown as "-".

    Returns:
        A string of lines without a line break at the end.

    >>> print(table({"kind": "", "time (s)": ".2f"}, [("full", 12.3456), ("local", None)]))
    kind   time (s)
    full      12.35
    local         -
    """
    import io

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, padding=(0, 1), pad_edge=False)
    for heading, spec in columns.items():
        grid.add_column(Text(heading), justify="right" if spec else "left", vertical="bottom")
    for row in rows:
        cells = ("-" if x is None else format(x, spec) for x, spec in zip(row, columns.values()))
        grid.add_row(*map(Text, cells))
    output = io.StringIO()
    Console(file=output, width=10**4, force_terminal=False, legacy_windows=False).print(grid)
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines())


def table_of(items, columns):
    """Formats a text table with a row for each item.

    Args:
        items: iterable.
        columns: dictionary from headings to pairs of a format specification and a function that
            returns the value for an item.

    Returns:
        A string of lines without a line break at the end.

    >>> print(table_of([3, 10], {"n": (",", int), "n²": (",", lambda n: n**2)}))
     n  n²
     3   9
    10 100
    """
    rows = [[value(item) for _, value in columns.values()] for item in items]
    return table({heading: spec for heading, (spec, _) in columns.items()}, rows)


def grouped(items, key):
    """Groups items, in the order of first appearance.

    Args:
        items: iterable.
        key: function that returns the key of an item's group.

    Returns:
        Dictionary from keys to lists of items.

    >>> grouped([1, 3, 4], lambda n: n % 2)
    {1: [1, 3], 0: [4]}
    """
    groups = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
