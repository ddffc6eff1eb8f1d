"""`rt-keras benchmark attention`: time and peak memory of each kind of attention.

Each contender runs in a separate process that stays alive. Contenders take turns, and times are
medians. A large matrix product takes turns with them. Its rate and the operation count of a kind
give a lower bound of the kind's time, its floor.
"""

import os

from rt_keras.benchmarks import operations, options, plot, rivals, workers
from rt_keras.options import add_integers, add_options, add_plot, check_picture
from rt_keras.tables import table_of

LENGTHS = tuple(1024 * 2**i for i in range(6))
PRODUCT = "matrix_product"


def add_arguments(parser):
    """Adds the command's options to an `argparse` parser."""
    parser.description = (
        "Measures time and peak memory of full, local, routing, clustered and hashed attention, "
        "and of other packages that are installed: forward, and with the gradients of query, key "
        "and value, for batch size 1 in float32. Kinds of this package are compiled with XLA. All "
        "of them except clustered and improved_clustered are causal."
    )
    parser.epilog = (
        "example: rt-keras benchmark attention --lengths 1024 4096 --json attention.json "
        "--plot attention.png"
    )
    options.add_numbers(parser, "lengths", LENGTHS, "sequence lengths, multiples of the window")
    options.add_names(parser, "kinds", operations.KINDS)
    add_integers(parser, {"heads": (8, "number of heads"), "depth": (64, "depth of a head")})
    meaning = (
        "cluster size and block size of local attention; there are N / WINDOW clusters. "
        '"sqrt" is the divisor of N closest to its square root (default: 256)'
    )
    add_options(parser, {"--window": meaning}, type=_window, default=256)
    options.add_shared(parser, rivals.ATTENTION)
    add_plot(parser, "the figures by length")


def _window(text):
    return text if text == "sqrt" else int(text)


def main(args):
    """Measures, prints the table and, with `--plot`, draws the figures.

    Args:
        args: namespace of the options.

    Returns:
        The dictionary that `measure` returns.

    Raises:
        ValueError: if an option is out of range.
        RuntimeError: if every contender fails.
    """
    check(args)
    result = measure(args, rivals.choose(args.rivals, rivals.ATTENTION))
    print(report(result))
    if args.plot:
        plot.draw(result, args.plot)
    return result


def check(args):
    """Raises a `ValueError` if an option is out of range."""
    options.check_at_least_one(args, "heads", "depth", "repeats", "threads")
    if args.window != "sqrt":
        options.check_at_least_one(args, "window")
    for length in args.lengths:
        if length < 1 or length % window_of(length, args.window):
            raise ValueError(
                f"--lengths must be positive multiples of --window {args.window}: there are "
                f"length / window clusters. Received: {length}"
            )
    check_picture(args)


def window_of(length, window):
    """Returns the window at a length.

    Args:
        length: int, the number of positions.
        window: int, or "sqrt" for the divisor of the length whose ratio to its square root is
            closest to 1, so that there are about as many clusters as members of each. Of two
            equally close divisors, the larger one is used.

    Returns:
        An int.

    >>> [window_of(n, "sqrt") for n in (4096, 8192, 16384)]
    [64, 128, 128]
    """
    if window != "sqrt" or length < 1:
        return 1 if window == "sqrt" else window
    divisors = [i for i in range(1, length + 1) if length % i == 0]
    return min(divisors, key=lambda i: (max(i * i / length, length / (i * i)), -i))


def measure(args, chosen_rivals):
    """Measures time and peak memory of each kind and rival, forward and forward + backward.

    Contenders that fail, as when they run out of memory, are left out and reported on standard
    error.

    Args:
        args: namespace of the options.
        chosen_rivals: dictionary from `rt_keras.benchmarks.rivals.choose`.

    Returns:
        A dictionary of JSON values: the machine, the settings, one entry of `figures` for each
        contender, length and direction, and the `slopes` of time and memory by length.

    Raises:
        RuntimeError: if every contender fails.
    """
    load = os.getloadavg()[0]
    figures = [
        figure
        for length in dict.fromkeys(args.lengths)
        for direction in plot.DIRECTIONS
        for figure in _measure_point(args, chosen_rivals, length, direction)
    ]
    settings = options.values(args, ("heads", "depth", "window"))
    settings |= {"batch": 1, "causal": True, "dtype": "float32", "compiler": "XLA"}
    slopes = [
        {name: curve[name] for name in ("quantity", "direction", "kind", "slope")}
        for curve in plot.curves(figures)
    ]
    more = {"benchmark": "attention", "slopes": slopes}
    return options.result(args, figures, load, chosen_rivals, settings, **more)


def _measure_point(args, chosen_rivals, length, direction):
    """Measures the contenders at one length and direction."""
    point = {"direction": direction, "length": length, "window": window_of(length, args.window)}
    sizes = {**point, **options.values(args, ("heads", "depth"))}
    contenders = {PRODUCT: workers.contender("operations:prepare_product", "tensorflow")}
    for kind in args.kinds:
        contenders[kind] = workers.contender("kinds:prepare", kind=kind, **sizes)
    for kind, imports in chosen_rivals.items():
        contenders[kind] = workers.contender("rivals:prepare", *imports, kind=kind, **sizes)
    where = f"n = {length:,}, {plot.DIRECTIONS[direction]}, "
    found = workers.contest(contenders, args.repeats, args.threads, where)
    product = found.pop(PRODUCT, None)
    point["clusters"] = length // point["window"]
    figures = options.figures_of(found, chosen_rivals, ("full", "local"), **point)
    for figure in figures:
        if figure["kind"] not in chosen_rivals:
            figure.update(_floor(figure, sizes, product))
    return figures


def _floor(figure, sizes, product):
    """Computes the time that a kind's operations take at the rate of the matrix product."""
    from rt_keras.ops.nearest_windows import block_size_of

    block_size = block_size_of(sizes["window"])
    needed = operations.count(figure["kind"], **sizes, block_size=block_size)
    if product is None:
        return {"operations": needed}
    rate = 2 * operations.SIZE**3 / product["seconds"]
    return {
        "operations": needed,
        "product_rate": rate,
        "floor_seconds": needed / rate,
        "times_floor": figure["seconds"] * rate / needed,
    }


def report(result):
    """Formats the figures as a table with one row for each length and kind.

    Args:
        result: dictionary from `measure`.

    Returns:
        A string. "x floor" is the time divided by its floor. The last columns are the speedups over
        the baselines, forward + backward.
    """
    rows = {}
    for figure in result["figures"]:
        direction, name = figure["direction"], {x: figure[x] for x in ("length", "kind")}
        row = rows.setdefault(tuple(name.values()), {**name, "times_as_fast_as": {}})
        row[direction] = figure
        if direction == "forward_backward":
            row["times_as_fast_as"] = figure["times_as_fast_as"]
    columns = {"length": (",", lambda row: row["length"]), **options.KIND}
    for direction, heading in (("forward", "forward"), ("forward_backward", "+ backward")):
        columns |= {
            f"{heading}\ntime (s)": (".4f", _cell(direction, "seconds")),
            f"{heading}\nx floor": (".1f", _cell(direction, "times_floor")),
            f"{heading}\npeak (MB)": (",.0f", _cell(direction, "peak_bytes", 1e6)),
        }
    columns |= options.speedups(result["figures"], ".1f")
    return f"{plot.title(result)}\n\n{table_of(rows.values(), columns)}"


def _cell(direction, name, unit=1):
    """Returns a function from a row to a value of its figure for one direction, or None."""
    return lambda row: row[direction][name] / unit if name in row.get(direction, ()) else None
