"""What the runs found: a table for each task, and a drawing of the learning curves."""

import statistics

from rt_keras import extras
from rt_keras.files import whole_file
from rt_keras.tables import table

# The kinds between which the gap lies that others close.
FLOOR, CEILING = "local", "oracle"
# An accuracy whose first step is shown.
REACHED = 0.9


def report(figures, scores):
    """A table for each task, with one row for each kind.

    Args:
        figures: list of what `rt_keras.benchmarks.quality.training.train` returned.
        scores: dictionary from the names of tasks to "accuracy" or "loss", what is compared.

    Returns:
        Lines of text.
    """
    machines = "\n".join(dict.fromkeys(figure["machine"] for figure in figures))
    tasks = dict.fromkeys(figure["settings"]["task"] for figure in figures)
    tables = [
        task_report([figure for figure in figures if figure["settings"]["task"] == task], score)
        for task, score in ((task, scores[task]) for task in tasks)
    ]
    return "\n\n".join([machines, *tables])


def task_report(figures, score):
    """The table of one task, below a line that says what was trained.

    Args:
        figures: list of the figures of runs that differ in kind and seed alone.
        score: "accuracy" or "loss", what is compared.

    Returns:
        Lines of text. The spread is the standard deviation over seeds. "gap closed" is the share
        (local - kind) / (local - oracle), "fullest" and "entropy" describe the clusters of the
        worst layer at the end, see `CentroidEMA`, near, far and new are the groups of a text, and
        "at" is the score at the end for another length.
    """
    groups = list(figures[0]["groups"])
    columns = {"kind": "", score: ".3f", "spread": ".3f", "gap\nclosed": ".0%"}
    columns |= {f"loss:\n{name}": ".3f" for name in groups}
    columns |= {f"at\n{length:,}": ".3f" for length in figures[0]["settings"]["test_lengths"]}
    columns |= {f"steps to\n{REACHED:.2f}": ","} if score == "accuracy" else {}
    columns |= {"keys a\nquery": ",.1f", "weights": ",", "step\n(ms)": ",.0f", "peak\n(MB)": ",.0f"}
    columns |= {"fullest": ".2f", "entropy": ".2f"}
    runs = by_kind(figures)
    shares = gaps_closed({kind: mean_score(found, score) for kind, found in runs.items()})
    rows = [_row(kind, found, score, groups, shares[kind]) for kind, found in runs.items()]
    return f"{_title(figures, score)}\n\n{table(columns, rows)}"


def by_kind(figures):
    """The figures of each kind, in the order in which the kinds come first."""
    kinds = dict.fromkeys(figure["settings"]["kind"] for figure in figures)
    return {kind: [x for x in figures if x["settings"]["kind"] == kind] for kind in kinds}


def mean_score(figures, score):
    """The mean of the score at the end of the runs."""
    return statistics.mean(figure[score][-1] for figure in figures)


def gaps_closed(means):
    """The share of the gap between local heads and the oracle that each kind closes.

    Args:
        means: dictionary from kinds to their mean accuracy or loss.

    Returns:
        A dictionary from kinds to floats, or to None if one of the two was not run or there is no
        gap.

    >>> gaps_closed({"local": 0.5, "nearest": 0.75, "oracle": 1.0})
    {'local': 0.0, 'nearest': 0.5, 'oracle': 1.0}
    """
    floor, ceiling = means.get(FLOOR), means.get(CEILING)
    if None in (floor, ceiling) or floor == ceiling:
        return dict.fromkeys(means)
    # 0.0 is added so that nothing is -0.
    return {kind: (floor - mean) / (floor - ceiling) + 0.0 for kind, mean in means.items()}


def steps_to(figure, wanted):
    """The number of steps after which an accuracy was first reached, or None."""
    tests = zip(figure["steps"], figure["accuracy"])
    return next((step for step, found in tests if found >= wanted), None)


def _row(kind, figures, score, groups, share):
    ends = [figure[score][-1] for figure in figures]
    spread = statistics.stdev(ends) if len(ends) > 1 else None
    row = [kind.replace("_", " "), statistics.mean(ends), spread, share]
    row += [_mean(figure["groups"][name]["loss"] for figure in figures) for name in groups]
    row += map(_mean, zip(*([x[score] for x in figure["at_lengths"]] for figure in figures)))
    if score == "accuracy":
        row.append(_mean(steps_to(figure, REACHED) for figure in figures))
    row += [
        _mean(figure["keys_seen"] for figure in figures),
        figures[0]["weights"],
        1e3 * statistics.median(figure["seconds"] for figure in figures),
        max(figure["peak_bytes"] for figure in figures) / 1e6,
    ]
    return [*row, _use(figures, "fullest", max), _use(figures, "entropy", min)]


def _mean(values):
    """The mean, or None if any value is None."""
    values = list(values)
    return None if None in values else statistics.mean(values)


def _use(figures, what, worst):
    """How evenly the clusters of the worst layer were used at the end, mean over the runs."""
    ends = [
        [values[-1] for name, values in figure["cluster_use"].items() if name.endswith(what)]
        for figure in figures
    ]
    return _mean(worst(values, default=None) for values in ends)


def _title(figures, score):
    settings = figures[0]["settings"]
    seeds = sorted({figure["settings"]["seed"] for figure in figures})
    what = f"{settings['task'].replace('_', ' ')}, {score} on held-out sequences"
    return (
        f"{what}: {settings['length']:,} tokens, {settings['steps']:,} steps of "
        f"{settings['batch']} sequences, {settings['layers']} blocks of width {settings['width']}, "
        f"{settings['keys']:,} keys, {settings['clusters']:,} clusters, "
        f"learning rate {settings['learning_rate']:g}, seed{'s' * (len(seeds) > 1)} "
        f"{', '.join(map(str, seeds))}"
    )


def draw(figures, scores, path):
    """Draws the learning curves: for each task, those of all kinds, and their range over seeds.

    Args:
        figures: list of what `rt_keras.benchmarks.quality.training.train` returned.
        scores: dictionary from the names of tasks to "accuracy" or "loss".
        path: `Path`, the file to write; its ending (`.png`, `.svg` or `.pdf`) sets the format.
    """
    with extras.needed("plot", "Drawing"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

    tasks = list(dict.fromkeys(figure["settings"]["task"] for figure in figures))
    drawing = Figure(figsize=(8, 5 * len(tasks)), layout="constrained")
    FigureCanvasAgg(drawing)
    for axis, task in zip(drawing.subplots(len(tasks), squeeze=False)[:, 0], tasks):
        of_task = [figure for figure in figures if figure["settings"]["task"] == task]
        for kind, found in by_kind(of_task).items():
            curves = list(zip(*(figure[scores[task]] for figure in found)))
            steps = found[0]["steps"]
            (line,) = axis.plot(
                steps, [statistics.mean(curve) for curve in curves], label=kind.replace("_", " ")
            )
            lows, highs = list(map(min, curves)), list(map(max, curves))
            axis.fill_between(steps, lows, highs, color=line.get_color(), alpha=0.2, linewidth=0)
        axis.set_title(_title(of_task, scores[task]).replace(": ", "\n", 1), fontsize=8)
        axis.set_xlabel("steps")
        axis.set_ylabel(scores[task])
        axis.grid(True, alpha=0.3)
        axis.legend(fontsize=8)
    with whole_file(path, suffix=path.suffix) as part:
        drawing.savefig(part, dpi=120)
