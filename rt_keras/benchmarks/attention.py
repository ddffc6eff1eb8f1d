"""`rt-keras benchmark attention`: time and peak memory of every kind of attention, side by side.

Times are medians of several runs in one process, where the kinds take turns. Peak memory is
measured in a new process for each figure, above that of the imports.
"""

import os
import statistics
import sys
from pathlib import Path

import rt_keras
from rt_keras.benchmarks import machine, memory, plot, timing
from rt_keras.files import write_json

KINDS = (
    "full",
    "local",
    "balanced_shared",
    "balanced_separate",
    "nearest_shared",
    "nearest_separate",
)
LENGTHS = tuple(1024 * 2**i for i in range(6))
DRAWINGS = (".png", ".svg", ".pdf")


def add_arguments(parser):
    """Adds the command's options to an `argparse` parser."""
    parser.description = (
        "Time and peak memory of full, local and routing attention, forward and with the gradients "
        "of query, key and value: causal, batch 1, float32, compiled by XLA."
    )
    parser.epilog = (
        "example: rt-keras benchmark attention --lengths 1024 4096 --json attention.json "
        "--plot attention.png"
    )
    parser.add_argument(
        "--lengths",
        type=int,
        nargs="+",
        default=LENGTHS,
        metavar="N",
        help="positions in the sequence; multiples of the window (1024, 2048, ... 32768)",
    )
    parser.add_argument(
        "--kinds",
        nargs="+",
        default=KINDS,
        metavar="KIND",
        help=f"which to measure: {', '.join(KINDS)} (all)",
    )
    parser.add_argument("--heads", type=int, default=8, help="number of heads (8)")
    parser.add_argument("--depth", type=int, default=64, help="depth of a head (64)")
    parser.add_argument(
        "--window",
        type=int,
        default=256,
        help="members of a cluster, and block of local attention; there are N / WINDOW clusters "
        "(256)",
    )
    parser.add_argument(
        "--repeats", type=int, default=9, help="most runs for a median; long ones get fewer (9)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures here")
    parser.add_argument(
        "--plot", metavar="FILE", help=f"draw them here ({', '.join(DRAWINGS)}), against the length"
    )


def main(args):
    """Measures, prints the table, and writes what was asked for.

    Args:
        args: what a parser with `add_arguments` found.

    Raises:
        ValueError: if an option is out of range.
        RuntimeError: if there is nothing that could be measured.
    """
    check(args)
    result = measure(args.lengths, args.kinds, args.heads, args.depth, args.window, args.repeats)
    print(report(result))
    if args.json:
        write_json(args.json, result)
    if args.plot:
        plot.draw(result["figures"], title(result), Path(args.plot))


def check(args):
    """Raises ValueError, with one readable line, where an option cannot be."""
    for name in ("heads", "depth", "window", "repeats"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name} must be at least 1. Received: {getattr(args, name)}")
    for length in args.lengths:
        if length < 1 or length % args.window:
            raise ValueError(
                f"--lengths must be positive multiples of --window {args.window}: there are "
                f"length / window clusters. Received: {length}"
            )
    for kind in args.kinds:
        if kind not in KINDS:
            raise ValueError(f"--kinds must be among {', '.join(KINDS)}. Received: {kind}")
    if args.plot and Path(args.plot).suffix not in DRAWINGS:
        raise ValueError(f"--plot must end in {' or '.join(DRAWINGS)}. Received: {args.plot}")
    for name in ("json", "plot"):
        path = getattr(args, name)
        if path and not _can_be_written(Path(path)):
            raise ValueError(f"--{name} must name a file that can be written. Received: {path}")


def _can_be_written(path):
    """Whether a file can be made at `path`, with the folders that are missing above it."""
    if path.is_dir():
        return False
    there = next(folder for folder in path.absolute().parents if folder.exists())
    return there.is_dir() and os.access(there, os.W_OK)


def measure(lengths, kinds, heads, depth, window, repeats):
    """Time and peak memory of each kind at each length, forward and forward + backward.

    A point whose process runs out of memory is left out, with a line on the error stream.

    Args:
        lengths: positions in the sequence.
        kinds: among `KINDS`.
        heads: number of heads.
        depth: of a head.
        window: members of a cluster; there are length / window clusters.
        repeats: most runs that a median is of.

    Returns:
        A dictionary of JSON values: the machine in words, the settings, for each point one
        entry of `figures`, and the `slopes` of time and memory against the length.
    """
    load_average = [os.getloadavg()[0]]
    figures = []
    for length in dict.fromkeys(lengths):
        for direction in plot.DIRECTIONS:
            points = {
                kind: {
                    "kind": kind,
                    "direction": direction,
                    "length": length,
                    "heads": heads,
                    "depth": depth,
                    "window": window,
                }
                for kind in dict.fromkeys(kinds)
            }
            figures += _measure_points(points, repeats)
    if not figures:
        raise RuntimeError("Nothing could be measured: every point failed.")
    return {
        "benchmark": "attention",
        "machine": machine.describe(),
        "version": rt_keras.__version__,
        "load_average": [*load_average, os.getloadavg()[0]],
        "settings": {
            "heads": heads,
            "depth": depth,
            "window": window,
            "batch": 1,
            "causal": True,
            "dtype": "float32",
            "compiler": "XLA",
        },
        "figures": figures,
        "slopes": [
            {name: curve[name] for name in ("quantity", "direction", "kind", "slope")}
            for curve in plot.curves(figures)
        ],
    }


def _measure_points(points, repeats):
    """Figures of kinds that are compared with one another; `points` are arguments of `prepare`."""
    from rt_keras.benchmarks import kinds

    peaks = {}
    for kind, point in points.items():
        try:
            peaks[kind] = memory.peak_above_imports(kinds.__name__, point)
        except RuntimeError as error:
            _progress(point, f"left out: {error}")
        else:
            _progress(point, f"peak {peaks[kind] / 1e6:,.0f} MB")
    runs = {kind: kinds.prepare(**points[kind]) for kind in peaks}
    times = timing.alternate(runs, repeats)
    medians = {kind: statistics.median(times[kind]) for kind in times}
    figures = []
    for kind, median in medians.items():
        point = points[kind]
        _progress(point, f"{median:.4f} s, median of {len(times[kind])}")
        figures.append(
            {
                "kind": kind,
                "direction": point["direction"],
                "length": point["length"],
                "clusters": point["length"] // point["window"],
                "seconds": median,
                "runs": times[kind],
                "times_as_fast_as_full": medians["full"] / median if "full" in medians else None,
                "peak_bytes": peaks[kind],
            }
        )
    return figures


def _progress(point, what):
    name = f"{point['kind']}, {plot.DIRECTIONS[point['direction']]}"
    print(f"n = {point['length']:,} {name}: {what}", file=sys.stderr, flush=True)


def title(result):
    """What was measured and where, in one line."""
    settings = result["settings"]
    return (
        f"{settings['heads']} heads of depth {settings['depth']}, window {settings['window']}, "
        f"n / {settings['window']} clusters, causal, float32, XLA\n{result['machine']}"
    )


def report(result):
    """The figures as a table: one row for each length and kind.

    Args:
        result: what `measure` returned.

    Returns:
        Lines of text. `x full` is how many times as fast as full attention at the same length.
    """
    found = {(f["length"], f["kind"], f["direction"]): f for f in result["figures"]}
    columns = "{:>9}  {:18}{:>11}{:>8}{:>9}{:>13}{:>8}{:>9}"
    lines = [
        title(result),
        "",
        f"{'':29}{'forward':^28}{'forward + backward':^30}",
        columns.format("n", "kind", "s", "x full", "MB", "s", "x full", "MB"),
    ]
    for length, kind in dict.fromkeys((length, kind) for length, kind, _ in found):
        cells = []
        for direction in plot.DIRECTIONS:
            cells += _cells(found.get((length, kind, direction)))
        lines.append(columns.format(f"{length:,}", kind.replace("_", " "), *cells))
    return "\n".join(line.rstrip() for line in lines)


def _cells(figure):
    if figure is None:
        return ["-", "-", "-"]
    ratio = figure["times_as_fast_as_full"]
    return [
        f"{figure['seconds']:.4f}",
        "-" if ratio is None else f"{ratio:.1f}",
        f"{figure['peak_bytes'] / 1e6:,.0f}",
    ]
