"""Time and memory against the length of the sequence, drawn and as slopes."""

import math
import statistics

from rt_keras.files import whole_file

# What is drawn: its name in the figures, its unit, and how many of the figures' units make one.
QUANTITIES = {
    "seconds": ("seconds", 1),
    "peak_bytes": ("peak memory above the imports, MB", 1e6),
}
DIRECTIONS = {"forward": "forward", "forward_backward": "forward + backward"}


def curves(figures):
    """The figures of one kind and direction against the length, and how fast they grow.

    Args:
        figures: list of dictionaries with `kind`, `direction`, `length` and the `QUANTITIES`.

    Returns:
        A list of dictionaries with `quantity`, `direction`, `kind`, `lengths`, `values` and
        `slope`: of a straight line through the logarithms, None where there is one length.

    >>> figures = [
    ...     {"kind": "full", "direction": "forward", "length": n, "seconds": n**2, "peak_bytes": n}
    ...     for n in (10, 20, 40)
    ... ]
    >>> [(curve["quantity"], round(curve["slope"], 3)) for curve in curves(figures)]
    [('seconds', 2.0), ('peak_bytes', 1.0)]
    """
    found = []
    for quantity in QUANTITIES:
        lines = dict.fromkeys((figure["direction"], figure["kind"]) for figure in figures)
        for direction, kind in lines:
            points = sorted(
                (figure["length"], figure[quantity])
                for figure in figures
                if (figure["direction"], figure["kind"]) == (direction, kind)
            )
            lengths, values = zip(*points)
            slope = None
            if len(points) > 1:
                logarithms = [list(map(math.log, axis)) for axis in (lengths, values)]
                slope = statistics.linear_regression(*logarithms).slope
            found.append(
                {
                    "quantity": quantity,
                    "direction": direction,
                    "kind": kind,
                    "lengths": lengths,
                    "values": values,
                    "slope": slope,
                }
            )
    return found


def draw(figures, title, path):
    """Draws time and memory, forward and with the gradient, on logarithmic axes.

    Args:
        figures: as in `curves`.
        title: one line above the whole.
        path: file to write; its ending (`.png`, `.svg`, `.pdf`) says in which format.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 9), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 2, sharex=True)
    places = {
        (quantity, direction): axes[row, column]
        for row, quantity in enumerate(QUANTITIES)
        for column, direction in enumerate(DIRECTIONS)
    }
    for curve in curves(figures):
        slope = "" if curve["slope"] is None else f"  $n^{{{curve['slope']:.2f}}}$"
        places[curve["quantity"], curve["direction"]].plot(
            curve["lengths"],
            [value / QUANTITIES[curve["quantity"]][1] for value in curve["values"]],
            marker="o",
            markersize=4,
            label=curve["kind"].replace("_", " ") + slope,
        )
    _label(places, sorted({figure["length"] for figure in figures}))
    figure.suptitle(title, fontsize=10)
    with whole_file(path, suffix=path.suffix) as part:
        figure.savefig(part, dpi=120)


def _label(places, lengths):
    for (quantity, direction), axis in places.items():
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axis.set_title(DIRECTIONS[direction])
        axis.set_xlabel("positions n")
        axis.set_ylabel(QUANTITIES[quantity][0])
        axis.grid(True, which="major", alpha=0.3)
        axis.legend(fontsize=8)
