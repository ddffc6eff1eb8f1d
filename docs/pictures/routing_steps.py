"""Draws `nearest` routing step by step: assign, sort, attend, move.

The numbers come from the ops. Vectors have three dimensions, so that normalized ones lie on a
circle. `python docs/pictures/routing_steps.py FOLDER` draws the pictures of
`docs/understand/routing.md`.
"""

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from routing_picture import COLORS

from rt_keras.analysis.drawing import drawing
from rt_keras.callbacks.centroid_rules import mean_update
from rt_keras.ops import nearest_attention, nearest_centroid
from rt_keras.ops.nearest.assign import cluster_statistics, normalize

LENGTH, WINDOW, CLUSTERS = 24, 4, len(COLORS)
# Far less than in a training, so that one update can be seen.
DECAY = 0.5
# Two directions in the plane of normalized vectors, whose entries add up to 0.
PLANE = np.array([[1, -1, 0], [1, 1, -2]]) / np.sqrt([[2], [6]])


class Example(NamedTuple):
    """A sequence that is routed.

    Args:
        points: float `[LENGTH, 2]`, the normalized vectors in their plane.
        centroids, moved: float `[CLUSTERS, 2]`, before and after an update.
        clusters: int `[LENGTH]`.
        seen: bool `[LENGTH, LENGTH]`, whether a query sees a key.
    """

    points: np.ndarray
    centroids: np.ndarray
    moved: np.ndarray
    clusters: np.ndarray
    seen: np.ndarray


def example(seed=5):
    """Routes a short sequence with the ops.

    Args:
        seed: int, the seed of the sequence. Defaults to 5.

    Returns:
        An `Example`.
    """
    rng = np.random.default_rng(seed)
    topics = rng.integers(CLUSTERS, size=LENGTH)
    angles = (topics + rng.normal(size=LENGTH) * 0.22) * 2 * np.pi / CLUSTERS
    x = tf.constant((_circle(angles) @ PLANE)[None, None], tf.float32)
    angles = (np.arange(CLUSTERS) + 0.3) * 2 * np.pi / CLUSTERS
    centroids = tf.constant((_circle(angles) @ PLANE)[None], tf.float32)
    options = {"window_size": WINDOW, "causal": True}
    weights = nearest_attention(x, None, tf.eye(LENGTH)[None, None], centroids, **options)
    clusters = nearest_centroid(normalize(x), centroids)
    sums, counts = cluster_statistics(normalize(x), clusters, CLUSTERS)
    moved = mean_update(centroids, counts[None], sums[None], DECAY)
    flat = [np.asarray(v).reshape(-1, 3) @ PLANE.T for v in (normalize(x), centroids, moved)]
    return Example(*flat, clusters.numpy()[0, 0], weights.numpy()[0, 0] > 0)


def _circle(angles):
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1)


def draw_assignment(axis, found):
    """Draws vectors on their circle, each in the color of its nearest centroid."""
    radius = np.linalg.norm(found.points, axis=-1).mean()
    _draw_circle(axis, radius)
    axis.scatter(*found.points.T, c=[COLORS[c] for c in found.clusters], s=36, zorder=2)
    for color, centroid in zip(COLORS, found.centroids):
        axis.annotate("", 0.8 * radius * centroid, (0, 0), arrowprops=_arrow(color))


def draw_order(axis, found):
    """The positions as in the text, and below sorted by cluster, with lines between the two."""
    order = np.argsort(found.clusters, kind="stable")
    for place, position in enumerate(order):
        color = COLORS[found.clusters[position]]
        axis.plot([position, place], [0.68, 0.32], color=color, linewidth=0.8)
        _draw_cell(axis, position, 0.8, position, color)
        _draw_cell(axis, place, 0.2, position, color)
    for edge in range(0, LENGTH + 1, WINDOW):
        axis.plot([edge - 0.5] * 2, [0, 0.4], color="black", linewidth=1)
    axis.text(-1, 0.8, "text", ha="right", va="center")
    axis.text(-1, 0.2, "sorted", ha="right", va="center")
    axis.set(xlim=(-3.5, LENGTH), ylim=(0, 1))


def draw_attention(axes, found):
    """Which keys each query sees, in the sorted order and in the order of the text."""
    order = np.argsort(found.clusters, kind="stable")
    orders = {"sorted by cluster": order, "in the order of the text": np.arange(LENGTH)}
    for axis, (title, order) in zip(axes, orders.items()):
        for row, query in enumerate(order):
            for column in np.flatnonzero(found.seen[query, order]):
                axis.scatter(column, row, c=COLORS[found.clusters[query]], marker="s", s=26)
        axis.set(xlim=(-0.7, LENGTH - 0.3), ylim=(LENGTH - 0.3, -0.7), aspect="equal")
        axis.set(title=title, xlabel="key", ylabel="query", xticks=[], yticks=[])


def draw_update(axis, found):
    """Where each centroid was, and where the mean of its members has moved it."""
    radius = np.linalg.norm(found.points, axis=-1).mean()
    _draw_circle(axis, radius)
    axis.scatter(*found.points.T, c=[COLORS[c] for c in found.clusters], s=36, alpha=0.35, zorder=2)
    for color, before, after in zip(COLORS, found.centroids, found.moved):
        axis.plot(*np.array([0 * before, 0.8 * radius * before]).T, color=color, linestyle=":")
        axis.annotate("", 0.8 * radius * after, (0, 0), arrowprops=_arrow(color))


def _draw_circle(axis, radius):
    points = radius * _circle(np.linspace(0, 2 * np.pi, 200))
    axis.plot(*points.T, color="#dddddd", zorder=1)
    axis.set(aspect="equal")
    axis.set_axis_off()


def _draw_cell(axis, place, height, position, color):
    axis.text(
        place,
        height,
        str(position),
        ha="center",
        va="center",
        color="white",
        fontsize=8,
        bbox={"facecolor": color, "edgecolor": "none", "boxstyle": "square,pad=0.25"},
    )
    axis.set_axis_off()


def _arrow(color):
    return {"arrowstyle": "-|>", "color": color, "linewidth": 2, "shrinkA": 0, "shrinkB": 0}


# The pictures: the columns of their axes, their size in inches, and what draws them.
PICTURES = {
    "routing_assign": (1, (3.4, 3.4), draw_assignment),
    "routing_sort": (1, (8, 2), draw_order),
    "routing_attend": (2, (8, 4.2), draw_attention),
    "routing_move": (1, (3.4, 3.4), draw_update),
}


def draw(folder):
    """Draws each of the steps into an SVG file of a folder.

    Args:
        folder: string or `Path`.

    Returns:
        A list of the files' `Path`s.
    """
    found, paths = example(), []
    for name, (columns, size, draw_on) in PICTURES.items():
        paths.append(Path(folder) / f"{name}.svg")
        with drawing(paths[-1], figsize=size) as figure:
            draw_on(figure.subplots(1, columns), found)
    return paths


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/pictures/routing_steps.py FOLDER")
    draw(sys.argv[1])
