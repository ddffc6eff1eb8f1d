"""`rt-keras benchmark compare`: comparison of two result files."""

from rt_keras.files import read_json
from rt_keras.options import add_options
from rt_keras.tables import table

# Keys that identify a figure in a file.
NAMES = ("kind", "direction", "length", "batch")
# Compared quantities: name, unit, scale and format. Lower is better.
QUANTITIES = {"seconds": ("time", "s", 1, ".5f"), "peak_bytes": ("peak", "MB", 1e6, ",.0f")}


def add_arguments(parser):
    """Adds the command's options to an `argparse` parser."""
    parser.description = (
        "Compares two result files of the same benchmark. Fails if a figure of this package is "
        "worse in the second file."
    )
    parser.epilog = "example: rt-keras benchmark compare before.json after.json --tolerance 0.05"
    parser.add_argument("before", metavar="A", help="the JSON file with the baseline")
    parser.add_argument("after", metavar="B", help="the JSON file to check against it")
    meaning = "accepted relative increase (default: 0.1)"
    add_options(parser, {"--tolerance": meaning}, type=float, default=0.1)


def main(args):
    """Prints a table of the figures that two files have in common.

    Args:
        args: namespace of the options.

    Returns:
        A dictionary of the compared figures, with an `error` if a figure of this package is worse
        by more than the tolerance.

    Raises:
        ValueError: if a file is not a result of a speed benchmark, or the two cannot be compared.
    """
    if args.tolerance < 0:
        raise ValueError(f"--tolerance must be at least 0. Received: {args.tolerance}")
    before, after = _read(args.before), _read(args.after)
    if before["benchmark"] != after["benchmark"]:
        raise ValueError(
            f"A and B must be results of the same benchmark. Received: {args.before} of "
            f"{before['benchmark']}, {args.after} of {after['benchmark']}"
        )
    rows = compare(before, after, args.tolerance)
    if not rows:
        raise ValueError(f"A and B must share figures. Received: {args.before}, {args.after}")
    print(report(before, after, rows))
    figures = {"tolerance": args.tolerance, "figures": rows}
    worse = sum(row["worse"] for row in rows)
    if worse:
        figures["error"] = (
            f"{worse} of {len(rows)} figures are worse in {args.after} by more than "
            f"{args.tolerance:.0%}"
        )
    return figures


def _read(path):
    result = read_json(path)
    figures = result.get("figures")
    if not figures or not all(name in figures[0] for name in QUANTITIES):
        raise ValueError(f"{path} is not from rt-keras benchmark attention, model, decode or input")
    return result


def compare(before, after, tolerance):
    """Compares the figures that two results have in common.

    Args:
        before: dictionary from `measure` of a benchmark.
        after: dictionary from `measure` of the same benchmark.
        tolerance: float, the accepted relative increase.

    Returns:
        A list of dictionaries with the figure's `NAMES`, `quantity`, `before`, `after`, `ratio`
        (after divided by before) and `worse`, which is True if the figure belongs to this package
        and the ratio is above 1 + tolerance.
    """
    earlier = {_name(figure): figure for figure in before["figures"]}
    return [
        {
            **{name: figure[name] for name in NAMES if name in figure},
            "quantity": quantity,
            "before": earlier[_name(figure)][quantity],
            "after": figure[quantity],
            "ratio": (ratio := figure[quantity] / earlier[_name(figure)][quantity]),
            "worse": figure["package"] == "rt_keras" and ratio > 1 + tolerance,
        }
        for figure in after["figures"]
        if _name(figure) in earlier
        for quantity in QUANTITIES
    ]


def _name(figure):
    return tuple(figure.get(name) for name in NAMES)


def differences(before, after):
    """Lists the machines, versions and settings that differ between two results.

    Args:
        before: dictionary, a result.
        after: dictionary, another result.

    Returns:
        A list of strings.
    """
    names = ("machine", "version", "rivals")
    one, other = (
        {**{name: found.get(name) for name in names}, **found["settings"]}
        for found in (before, after)
    )
    return [
        f"{name} differs: {one.get(name)} / {other.get(name)}"
        for name in {**one, **other}
        if one.get(name) != other.get(name)
    ]


def report(before, after, rows):
    """Formats compared figures as a table.

    Args:
        before: dictionary, a result.
        after: dictionary, another result.
        rows: list of dictionaries that `compare` returned for them.

    Returns:
        A string. "WORSE" marks a figure that got worse.
    """
    columns = {"length": ",", "kind": "", "direction": ""}
    for what, unit, _, spec in QUANTITIES.values():
        columns |= {f"{what} ({unit})\nbefore": spec, f"{what} ({unit})\nafter": spec}
        columns |= {f"{what}\nratio": ".2f"}
    lines = []
    # Each figure has one row per quantity.
    for figure in zip(*(rows[i :: len(QUANTITIES)] for i in range(len(QUANTITIES)))):
        cells = [figure[0].get("length"), figure[0]["kind"].replace("_", " ")]
        cells.append(figure[0].get("direction", "").replace("_", " + "))
        for row in figure:
            scale = QUANTITIES[row["quantity"]][2]
            cells += [row["before"] / scale, row["after"] / scale, row["ratio"]]
        lines.append([*cells, "WORSE" if any(row["worse"] for row in figure) else ""])
    return "\n".join([*differences(before, after), table({**columns, "": ""}, lines)])
