"""`rt-keras benchmark compare`: what has become slower, or larger, from one file to another."""

import json
from pathlib import Path

# What tells the figures of a file apart, and what is compared. Less is better.
NAMES = ("kind", "direction", "length", "batch")
QUANTITIES = {"seconds": ("s", 1), "peak_bytes": ("MB", 1e6)}


def add_arguments(parser):
    """Adds the command's options to an `argparse` parser."""
    parser.description = (
        "Compares two files that the same benchmark has written, and fails where a figure of ours "
        "is worse in the second."
    )
    parser.epilog = "example: rt-keras benchmark compare before.json after.json --tolerance 0.05"
    parser.add_argument("before", metavar="A", help="the JSON file to compare with")
    parser.add_argument("after", metavar="B", help="the JSON file that is to be no worse")
    parser.add_argument(
        "--tolerance", type=float, default=0.1, help="how much worse is still as good (0.1)"
    )


def main(args):
    """Prints the table of what two files share.

    Args:
        args: what a parser with `add_arguments` found.

    Returns:
        A dictionary of the figures compared, with an `error` if a figure of ours got worse by more
        than the tolerance.

    Raises:
        ValueError: if a file is not that of a benchmark, or the two cannot be compared.
    """
    if args.tolerance < 0:
        raise ValueError(f"--tolerance must be at least 0. Received: {args.tolerance}")
    before, after = _read(args.before), _read(args.after)
    if before["benchmark"] != after["benchmark"]:
        raise ValueError(
            f"{args.before} is of the benchmark {before['benchmark']}, {args.after} of "
            f"{after['benchmark']}"
        )
    rows = compare(before, after, args.tolerance)
    if not rows:
        raise ValueError(f"{args.before} and {args.after} have no figure in common")
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
    result = json.loads(Path(path).read_text(encoding="utf-8"))
    figures = result.get("figures") if isinstance(result, dict) else None
    if not figures or not all(name in figures[0] for name in QUANTITIES):
        raise ValueError(f"{path} is not of rt-keras benchmark attention, model or decode")
    return result


def compare(before, after, tolerance):
    """The figures that two results share.

    Args:
        before, after: what the `measure` of one benchmark has returned.
        tolerance: how much worse is still as good, as a share.

    Returns:
        A list of dictionaries: what the figure is of, `quantity`, `before`, `after`, `ratio` (after
        over before) and `worse`, whether it is one of ours and the ratio is above 1 + tolerance.
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
    """Lines that say where machine, versions or settings of two results are not the same."""
    lines = []
    for name in ("machine", "version", "rivals"):
        if before.get(name) != after.get(name):
            lines.append(f"{name} differs: {before.get(name)} / {after.get(name)}")
    settings = (before["settings"], after["settings"])
    for name in dict.fromkeys([*settings[0], *settings[1]]):
        values = [found.get(name) for found in settings]
        if values[0] != values[1]:
            lines.append(f"{name} differs: {values[0]} / {values[1]}")
    return lines


def report(before, after, rows):
    """A table of what is compared.

    Args:
        before, after: the two results.
        rows: what `compare` returned of them.

    Returns:
        Lines of text; "WORSE" stands beside what is.
    """
    columns = "{:>9}  {:25}{:18}{:>12}{:>12} {:3}{:>8}  {}"
    lines = [*differences(before, after)]
    lines.append(columns.format("n", "kind", "", "before", "after", "", "ratio", "").rstrip())
    for row in rows:
        unit, scale = QUANTITIES[row["quantity"]]
        digits = ",.0f" if unit == "MB" else ".5f"
        lines.append(
            columns.format(
                f"{row['length']:,}",
                row["kind"].replace("_", " "),
                row.get("direction", "").replace("_", " + "),
                format(row["before"] / scale, digits),
                format(row["after"] / scale, digits),
                unit,
                f"{row['ratio']:.2f}",
                "WORSE" if row["worse"] else "",
            ).rstrip()
        )
    return "\n".join(lines)
