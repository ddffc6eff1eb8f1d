"""Time and memory by sequence length: slopes and plots.

`rt-keras benchmark plot` draws the results of `rt-keras benchmark attention`.
"""

import itertools
import math
import statistics

from rt_keras.drawing import drawing
from rt_keras.files import read_json
from rt_keras.options import PICTURES, add_options, check_picture

# Drawn quantities by their names in the figures: axis labels and scales of the units.
QUANTITIES = {"seconds": ("seconds", 1), "peak_bytes": ("peak memory above the imports, MB", 1e6)}
DIRECTIONS = {"forward": "forward", "forward_backward": "forward + backward"}


def add_arguments(parser):
    """Adds the command's options to an `argparse` parser."""
    parser.description = "Draws the results of rt-keras benchmark attention --json."
    parser.epilog = "example: rt-keras benchmark plot attention.json --output attention.svg"
    parser.add_argument("figures", metavar="FILE", help="the JSON file")
    meaning = f"the file to write ({', '.join(PICTURES)})"
    add_options(parser, {"--output FILE": meaning}, required=True)


def main(args):
    """Draws the figures in a file.

    Args:
        args: namespace of the options.

    Returns:
        A dictionary with the written file as `plot`.

    Raises:
        ValueError: if the figures are not from the attention benchmark, or the extension of the
            output is unknown.
    """
    check_picture(args, "output")
    result = read_json(args.figures)
    if result.get("benchmark") != "attention":
        raise ValueError(f"{args.figures} is not from rt-keras benchmark attention")
    draw(result, args.output)
    print(f"wrote {args.output}")
    return {"plot": args.output}


def title(result):
    """Returns two lines that describe the settings and the machine."""
    settings = result["settings"]
    window = "sqrt(n)" if settings["window"] == "sqrt" else settings["window"]
    return (
        f"{settings['heads']} heads of depth {settings['depth']}, window {window}, "
        f"n / {window} clusters, causal, float32, XLA\n{result['machine']}"
    )


def curves(figures):
    """Returns the figures of each kind and direction by length, with their slopes.

    Args:
        figures: list of dictionaries with `kind`, `package`, `direction`, `length` and the
            `QUANTITIES`.

    Returns:
        A list of dictionaries with `quantity`, `direction`, `kind`, `package`, `lengths`, `values`
        and `slope`, the slope of a line fitted to the logarithms, or None for a single length.

    >>> figures = [
    ...     {
    ...         "kind": "full",
    ...         "package": "rt_keras",
    ...         "direction": "forward",
    ...         "length": n,
    ...         "seconds": n**2,
    ...         "peak_bytes": n,
    ...     }
    ...     for n in (10, 20, 40)
    ... ]
    >>> [(curve["quantity"], round(curve["slope"], 3)) for curve in curves(figures)]
    [('seconds', 2.0), ('peak_bytes', 1.0)]
    """
    names, found = ("direction", "kind", "package"), []
    lines = dict.fromkeys(tuple(figure[name] for name in names) for figure in figures)
    for quantity, line in itertools.product(QUANTITIES, lines):
        curve = {"quantity": quantity, **dict(zip(names, line))}
        points = sorted(
            (figure["length"], figure[quantity])
            for figure in figures
            if all(figure[name] == curve[name] for name in names)
        )
        lengths, values = zip(*points)
        slope = None
        if len(points) > 1:
            logarithms = [list(map(math.log, axis)) for axis in (lengths, values)]
            slope = statistics.linear_regression(*logarithms).slope
        found.append({**curve, "lengths": lengths, "values": values, "slope": slope})
    return found


def draw(result, path):
    """Draws time and memory, forward and with gradients, on logarithmic axes.

    The lines of other packages are dashed.

    Args:
        result: dictionary from `rt_keras.benchmarks.attention.measure`.
        path: string or `Path`, the file to write; its extension (`.png`, `.svg` or `.pdf`) sets the
            format.
    """
    found = curves(result["figures"])
    lengths = sorted({figure["length"] for figure in result["figures"]})
    with drawing(path, figsize=(11, 9)) as figure:
        axes = figure.subplots(2, 2, sharex=True).ravel()
        places = itertools.product(QUANTITIES.items(), DIRECTIONS)
        for axis, ((quantity, (label, unit)), direction) in zip(axes, places):
            for curve in found:
                if (curve["quantity"], curve["direction"]) == (quantity, direction):
                    _draw_curve(axis, curve, unit)
            axis.set_xscale("log", base=2)
            axis.set_xticks(lengths, [f"{length:,}" for length in lengths])
            axis.set(title=DIRECTIONS[direction], xlabel="positions n", ylabel=label, yscale="log")
            axis.grid(True, which="major", alpha=0.3)
            axis.legend(fontsize=8)
        figure.suptitle(title(result), fontsize=10)


def _draw_curve(axis, curve, unit):
    slope = "" if curve["slope"] is None else f"  $n^{{{curve['slope']:.2f}}}$"
    axis.plot(
        curve["lengths"],
        [value / unit for value in curve["values"]],
        "o-" if curve["package"] == "rt_keras" else "s--",
        markersize=4,
        label=curve["kind"].replace("_", " ") + slope,
    )
