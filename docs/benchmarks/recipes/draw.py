"""Draws the figures of a file that `rt-keras benchmark ... --json FILE` has written.

python docs/benchmarks/recipes/draw.py FILE PICTURE

speed: time and memory by length; quality: learning curves; pretrained: the loss by the number of
keys that a query sees.
"""

import collections
import json
import statistics
import sys
from pathlib import Path

from matplotlib import pyplot as plt


def speed(figures):
    """Yields the title, the labels and the lines of each plot, with logarithmic axes."""
    for quantity, label in (("seconds", "seconds"), ("peak_bytes", "peak memory, bytes")):
        for timed in dict.fromkeys(figure["pass"] for figure in figures):
            lines = collections.defaultdict(list)
            for figure in figures:
                if figure["pass"] == timed:
                    lines[figure["kind"]].append((figure["length"], figure[quantity]))
            yield timed, "positions", label, lines


def quality(figures):
    for task in dict.fromkeys(figure["settings"]["task"] for figure in figures):
        score, runs = "loss" if task == "text" else "accuracy", collections.defaultdict(list)
        for figure in figures:
            if figure["settings"]["task"] == task:
                runs[figure["settings"]["kind"]].append(figure)
        means = {kind: zip(*(run[score] for run in found)) for kind, found in runs.items()}
        lines = {
            kind: list(zip(runs[kind][0]["steps"], map(statistics.mean, curve)))
            for kind, curve in means.items()
        }
        yield task, "steps", score, lines


def pretrained(figures):
    for length in dict.fromkeys(figure["settings"]["length"] for figure in figures):
        lines = collections.defaultdict(list)
        for figure in figures:
            if figure["settings"]["length"] == length:
                parts = figure["settings"]["kind"].split(":")
                kind = ":".join(part for part in parts if not part.startswith("num_"))
                lines[kind].append((figure["keys"], figure["book"]))
        yield f"{length:,} tokens", "keys that a query sees", "loss, nats per token", lines


def main(file, picture):
    result = json.loads(Path(file).read_text())
    draw = {"speed": speed, "quality": quality, "pretrained": pretrained}[result["benchmark"]]
    plots = list(draw(result["figures"]))
    figure, axes = plt.subplots(len(plots), squeeze=False, figsize=(8, 5 * len(plots)))
    for axis, (title, x, y, lines) in zip(axes[:, 0], plots):
        for kind, points in lines.items():
            axis.plot(*zip(*sorted(points)), "o-", markersize=3, label=kind.replace("_", " "))
        axis.set(title=title, xlabel=x, ylabel=y)
        if draw is speed:
            axis.set(xscale="log", yscale="log")
        axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
