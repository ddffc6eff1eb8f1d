"""Reports of runs: a table for each task, and a plot of the learning curves."""

import statistics

from rt_keras.benchmarks.options import words
from rt_keras.drawing import drawing
from rt_keras.tables import table_of

# The kinds at the ends of the gap that other kinds close.
FLOOR, CEILING = "local", "oracle"
# The accuracy whose first step the table shows.
REACHED = 0.9


def report(figures, scores):
    """Formats a table for each task, with one row for each kind.

    Args:
        figures: list of dictionaries from `rt_keras.benchmarks.quality.training.train`.
        scores: dictionary from task names to the score to compare, "accuracy" or "loss".

    Returns:
        A string.
    """
    machines = "\n".join(dict.fromkeys(figure["machine"] for figure in figures))
    tables = [task_report(runs, scores[task]) for task, runs in grouped(figures, "task").items()]
    return "\n\n".join([machines, *tables])


def task_report(figures, score):
    """Formats the table of one task, below a line with the settings.

    Args:
        figures: list of the figures of runs that differ only in kind and seed.
        score: "accuracy" or "loss", the score to compare.

    Returns:
        A string. "spread" is the standard deviation over seeds, and "gap closed" the share
        (local - kind) / (local - oracle). "fullest" and "entropy" describe the clusters of the
        worst layer at the end; see `CentroidEMA`. "near", "far" and "new" are the groups of the
        task text, and "at" is the final score at another length.
    """
    kinds = grouped(figures, "kind")
    shares = gaps_closed({kind: mean_score(runs, score) for kind, runs in kinds.items()})

    def ends(runs):
        return [run[score][-1] for run in runs]

    columns = {
        "kind": ("", lambda runs: words(runs[0]["settings"]["kind"])),
        score: (".3f", lambda runs: mean_score(runs, score)),
        "spread": (".3f", lambda runs: statistics.stdev(ends(runs)) if len(runs) > 1 else None),
        "gap\nclosed": (".0%", lambda runs: shares[runs[0]["settings"]["kind"]]),
    }
    for name in figures[0]["groups"]:
        columns[f"loss:\n{name}"] = (
            ".3f",
            _mean_of(lambda run, name=name: run["groups"][name]["loss"]),
        )
    for i, length in enumerate(figures[0]["settings"]["test_lengths"]):
        columns[f"at\n{length:,}"] = (".3f", _mean_of(lambda run, i=i: run["at_lengths"][i][score]))
    if score == "accuracy":
        columns[f"steps to\n{REACHED:.2f}"] = (",", _mean_of(lambda run: steps_to(run, REACHED)))
    columns |= {
        "keys per\nquery": (",.1f", _mean_of(lambda run: run["keys_seen"])),
        "weights": (",", lambda runs: runs[0]["weights"]),
        "step\n(ms)": (",.0f", lambda runs: 1e3 * statistics.median(r["seconds"] for r in runs)),
        "peak\n(MB)": (",.0f", lambda runs: max(run["peak_bytes"] for run in runs) / 1e6),
        "fullest": (".2f", _mean_of(lambda run: _use(run, "fullest", max))),
        "entropy": (".2f", _mean_of(lambda run: _use(run, "entropy", min))),
    }
    return f"{_title(figures, score)}\n\n{table_of(kinds.values(), columns)}"


def grouped(figures, setting):
    """Groups figures by a setting, in the order of first appearance."""
    found = {}
    for figure in figures:
        found.setdefault(figure["settings"][setting], []).append(figure)
    return found


def mean_score(figures, score):
    """Returns the mean final score of the runs."""
    return statistics.mean(figure[score][-1] for figure in figures)


def gaps_closed(means):
    """Returns the share of the gap between local heads and the oracle that each kind closes.

    Args:
        means: dictionary from kinds to their mean accuracy or loss.

    Returns:
        A dictionary from kinds to floats, or to None if there is no gap or one of its ends was not
        run.

    >>> gaps_closed({"local": 0.5, "nearest": 0.75, "oracle": 1.0})
    {'local': 0.0, 'nearest': 0.5, 'oracle': 1.0}
    """
    floor, ceiling = means.get(FLOOR), means.get(CEILING)
    if None in (floor, ceiling) or floor == ceiling:
        return dict.fromkeys(means)
    # Adding 0.0 avoids -0.0.
    return {kind: (floor - mean) / (floor - ceiling) + 0.0 for kind, mean in means.items()}


def steps_to(figure, wanted):
    """Returns the number of steps after which an accuracy was first reached, or None."""
    tests = zip(figure["steps"], figure["accuracy"])
    return next((step for step, found in tests if found >= wanted), None)


def _mean_of(value):
    """Returns a function that averages a value over runs, or gives None if any run has none."""

    def mean(runs):
        values = list(map(value, runs))
        return None if None in values else statistics.mean(values)

    return mean


def _use(run, what, worst):
    """Returns the final use of the clusters of the worst layer, or None."""
    ends = [values[-1] for name, values in run["cluster_use"].items() if name.endswith(what)]
    return worst(ends, default=None)


def _title(figures, score):
    settings = figures[0]["settings"]
    seeds = sorted({figure["settings"]["seed"] for figure in figures})
    what = f"{settings['task'].replace('_', ' ')}, {score} on held-out sequences"
    return (
        f"{what}: {settings['length']:,} tokens, {settings['steps']:,} steps of "
        f"{settings['batch']} sequences, {settings['layers']} blocks of width {settings['width']}, "
        f"{settings['keys']:,} keys, {settings['clusters']:,} clusters, "
        f"learning rate {settings['learning_rate']:g}, {settings['positions']} positions, "
        f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    )


def draw(figures, scores, path):
    """Draws the learning curves of all kinds for each task, with their range over seeds.

    Args:
        figures: list of dictionaries from `rt_keras.benchmarks.quality.training.train`.
        scores: dictionary from task names to "accuracy" or "loss".
        path: string or `Path`, the file to write; its extension (`.png`, `.svg` or `.pdf`) sets the
            format.
    """
    tasks = grouped(figures, "task")
    with drawing(path, figsize=(8, 5 * len(tasks))) as figure:
        axes = figure.subplots(len(tasks), squeeze=False)[:, 0]
        for axis, (task, of_task) in zip(axes, tasks.items()):
            for kind, runs in grouped(of_task, "kind").items():
                curves = list(zip(*(run[scores[task]] for run in runs)))
                steps = runs[0]["steps"]
                (line,) = axis.plot(steps, list(map(statistics.mean, curves)), label=words(kind))
                lows, highs = list(map(min, curves)), list(map(max, curves))
                axis.fill_between(
                    steps, lows, highs, color=line.get_color(), alpha=0.2, linewidth=0
                )
            axis.set_title(_title(of_task, scores[task]).replace(": ", "\n", 1), fontsize=8)
            axis.set(xlabel="steps", ylabel=scores[task])
            axis.grid(True, alpha=0.3)
            axis.legend(fontsize=8)
