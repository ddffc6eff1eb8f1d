"""`rt-keras benchmark attention`: time and peak memory of every kind of attention, side by side.

Each contender has a process of its own that stays alive; they take turns, and times are medians.
A large matrix product takes turns with them. Its rate and the number of operations that a kind
needs give the floor of the kind's time.
"""

import os
from pathlib import Path

from rt_keras.benchmarks import machine, operations, options, plot, rivals, workers
from rt_keras.options import add_integers, add_plot, check_picture
from rt_keras.tables import table

KINDS = (
    "full",
    "local",
    "balanced_shared",
    "balanced_separate",
    "nearest_shared",
    "nearest_separate",
    "clustered",
    "improved_clustered",
    "causal_clustered",
    "lsh",
)
LENGTHS = tuple(1024 * 2**i for i in range(6))
PRODUCT = "matrix_product"


def add_arguments(parser):
    """Adds the command's options to an `argparse` parser."""
    parser.description = (
        "Measures time and peak memory of full, local, routing, clustered and hashed attention, "
        "forward and with the gradients of query, key and value (batch 1, float32, compiled by "
        "XLA, and causal but for clustered and improved_clustered), and those of other packages "
        "that are installed."
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
        help="sequence lengths, multiples of the window (default: 1024, 2048, ... 32768)",
    )
    options.add_kinds(parser, KINDS)
    add_integers(parser, {"heads": (8, "number of heads"), "depth": (64, "depth of a head")})
    parser.add_argument(
        "--window",
        type=_window,
        default=256,
        help="members of a cluster and block size of local attention; there are N / WINDOW "
        'clusters. "sqrt" is the divisor of N closest to its square root (default: 256)',
    )
    options.add_shared(parser, rivals.ATTENTION)
    add_plot(parser, "the figures against the length")


def _window(text):
    return text if text == "sqrt" else int(text)


def main(args):
    """Measures, prints the table and draws the plot if asked to.

    Args:
        args: namespace of the options.

    Returns:
        What `measure` returns.

    Raises:
        ValueError: if an option is out of range.
        RuntimeError: if nothing could be measured.
    """
    check(args)
    chosen = rivals.choose(args.rivals, rivals.ATTENTION, options.say)
    result = measure(
        args.lengths,
        args.kinds,
        args.heads,
        args.depth,
        args.window,
        args.repeats,
        chosen_rivals=chosen,
        threads=args.threads,
    )
    print(report(result))
    if args.plot:
        plot.draw(result["figures"], plot.title(result), Path(args.plot))
    return result


def check(args):
    """Raises a ValueError of one line if an option is out of range."""
    options.check_at_least_one(args, "heads", "depth", "repeats", "threads")
    if args.window != "sqrt":
        options.check_at_least_one(args, "window")
    for length in args.lengths:
        if length < 1 or length % window_of(length, args.window):
            raise ValueError(
                f"--lengths must be positive multiples of --window {args.window}: there are "
                f"length / window clusters. Received: {length}"
            )
    options.check_among("kinds", args.kinds, KINDS)
    check_picture(args)


def window_of(length, window):
    """The window at a length.

    Args:
        length: int, the number of positions.
        window: int, or "sqrt" for the divisor of the length whose ratio to its square root is
            closest to 1, which gives about as many clusters as members. The larger one of two wins.

    Returns:
        An int.

    >>> [window_of(n, "sqrt") for n in (4096, 8192, 16384)]
    [64, 128, 128]
    """
    if window != "sqrt" or length < 1:
        return 1 if window == "sqrt" else window
    divisors = [i for i in range(1, length + 1) if length % i == 0]
    return min(divisors, key=lambda i: (max(i * i / length, length / (i * i)), -i))


def measure(lengths, kinds, heads, depth, window, repeats, chosen_rivals=None, threads=None):
    """Measures time and peak memory of each kind and rival, forward and forward + backward.

    What runs out of memory is left out, and reported on standard error.

    Args:
        lengths: list of ints, the numbers of positions.
        kinds: list of strings among `KINDS`.
        heads: int, the number of heads.
        depth: int, the depth of a head.
        window: int, the number of members of a cluster, or "sqrt"; see `window_of`.
        repeats: int, the maximum number of runs for a median.
        chosen_rivals: what `rt_keras.benchmarks.rivals.choose` returned. Defaults to None, no
            rivals.
        threads: int, the number of threads of each process. Defaults to the number of cores.

    Returns:
        A dictionary of JSON values: the machine, the settings, one entry of `figures` for each
        contender, length and direction, and the `slopes` of time and memory against the length.

    Raises:
        RuntimeError: if nothing could be measured.
    """
    chosen_rivals = chosen_rivals or {}
    threads = threads or machine.count_cores()
    load_average = [os.getloadavg()[0]]
    figures = []
    for length in dict.fromkeys(lengths):
        for direction in plot.DIRECTIONS:
            point = {
                "direction": direction,
                "length": length,
                "heads": heads,
                "depth": depth,
                "window": window_of(length, window),
            }
            figures += _measure_point(point, dict.fromkeys(kinds), chosen_rivals, repeats, threads)
    if not figures:
        raise RuntimeError("Nothing could be measured: every point failed.")
    return {
        "benchmark": "attention",
        **options.origin(chosen_rivals, load_average),
        "settings": {
            "heads": heads,
            "depth": depth,
            "window": window,
            "batch": 1,
            "causal": True,
            "dtype": "float32",
            "compiler": "XLA",
            "threads": threads,
            "repeats": repeats,
        },
        "figures": figures,
        "slopes": [
            {name: curve[name] for name in ("quantity", "direction", "kind", "slope")}
            for curve in plot.curves(figures)
        ],
    }


def _measure_point(point, kinds, chosen_rivals, repeats, threads):
    """Figures of the contenders at one length and direction."""
    contenders = {
        PRODUCT: {
            "target": f"{operations.__name__}:prepare_product",
            "arguments": {},
            "imports": ["tensorflow"],
        }
    }
    for kind in (*kinds, *chosen_rivals):
        module = "rivals" if kind in chosen_rivals else "kinds"
        imports = chosen_rivals.get(kind, ())
        contenders[kind] = options.contender(f"{module}:prepare", kind, imports, **point)

    def say(name, what):
        what_of_it = f"{name}, {plot.DIRECTIONS[point['direction']]}"
        options.say(f"n = {point['length']:,} {what_of_it}: {what}")

    found = workers.contest(contenders, repeats, threads, say)
    product = found.pop(PRODUCT, None)
    figures = options.figures_of(
        found,
        chosen_rivals,
        ("full", "local"),
        **{name: point[name] for name in ("direction", "length", "window")},
        clusters=point["length"] // point["window"],
    )
    for figure in figures:
        if figure["kind"] not in chosen_rivals:
            figure.update(_floor(figure["kind"], point, figure["seconds"], product))
    return figures


def _floor(kind, point, seconds, product):
    """The time that the operations of a kind take at the rate of the matrix product."""
    from rt_keras.ops.nearest_windows import block_size_of

    block_size = block_size_of(point["window"])
    needed = operations.count(kind, **point, block_size=block_size)
    if product is None:
        return {"operations": needed}
    rate = 2 * operations.SIZE**3 / product["seconds"]
    return {
        "operations": needed,
        "product_rate": rate,
        "floor_seconds": needed / rate,
        "times_floor": seconds * rate / needed,
    }


def report(result):
    """The figures as a table with one row for each length and kind.

    Args:
        result: what `measure` returned.

    Returns:
        Lines of text. "x floor" is the time divided by its floor; the last columns are how many
        times as fast as the baselines a kind is, forward + backward.
    """
    found = {(f["length"], f["kind"], f["direction"]): f for f in result["figures"]}
    baselines = dict.fromkeys(name for f in result["figures"] for name in f["times_as_fast_as"])
    columns = {"length": ",", "kind": ""}
    for direction in ("forward", "+ backward"):
        columns |= {f"{direction}\ntime (s)": ".4f", f"{direction}\nx floor": ".1f"}
        columns |= {f"{direction}\npeak (MB)": ",.0f"}
    columns |= options.speedup_columns(baselines, ".1f")
    rows = []
    for length, kind in dict.fromkeys((length, kind) for length, kind, _ in found):
        both = [found.get((length, kind, direction)) for direction in plot.DIRECTIONS]
        speedups = both[1]["times_as_fast_as"] if both[1] else {}
        cells = [cell for figure in both for cell in _cells(figure)]
        name = kind.replace("_", " ")
        rows.append([length, name, *cells, *(speedups.get(name) for name in baselines)])
    return f"{plot.title(result)}\n\n{table(columns, rows)}"


def _cells(figure):
    if figure is None:
        return [None, None, None]
    return [figure["seconds"], figure.get("times_floor"), figure["peak_bytes"] / 1e6]
