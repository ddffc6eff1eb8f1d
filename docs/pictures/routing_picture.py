"""Draws which keys each query sees in full, local and routing attention.

The weights come from the ops themselves: attention returns them if the values are one-hot vectors
of the positions. `python docs/pictures/routing_picture.py FILE` draws the README's picture.
"""

import sys

import numpy as np
import tensorflow as tf

from rt_keras.analysis.drawing import drawing
from rt_keras.ops import full_attention, local_attention, nearest_attention, nearest_centroid
from rt_keras.ops.nearest.assign import normalize

LENGTH = 48
WINDOW = 8
CLUSTERS = 4
COLORS = ("#4477aa", "#ee6677", "#228833", "#ccbb44")
GREY = "#bbbbbb"


def attention_maps(seed=3):
    """Which keys each query of one head sees, over a sequence drawn from a few clusters.

    Args:
        seed: int, the seed of the sequence. Defaults to 3.

    Returns:
        A dictionary from the name of an attention to a bool array `[LENGTH, LENGTH]` over queries
        and keys, and the cluster of each position, int `[LENGTH]`.
    """
    rng = np.random.default_rng(seed)
    centroids = np.linalg.qr(rng.normal(size=(16, 16)))[0][:CLUSTERS]
    topics = np.repeat(rng.integers(0, CLUSTERS, LENGTH), rng.integers(1, 4, LENGTH))
    x = 4 * centroids[topics[:LENGTH]] + rng.normal(size=(LENGTH, 16)) * 0.4
    x = tf.constant(x[None, None], tf.float32)
    centroids = tf.constant(centroids[None], tf.float32)
    positions = tf.eye(LENGTH)[None, None]
    weights = {
        "full: every earlier key": full_attention(x, None, positions, causal=True),
        "local: the blocks beside it": local_attention(
            x, None, positions, block_size=WINDOW, causal=True
        ),
        "routing: the last keys of its own cluster": nearest_attention(
            x, None, positions, centroids, window_size=WINDOW, causal=True
        ),
    }
    maps = {name: weight.numpy()[0, 0] > 0 for name, weight in weights.items()}
    return maps, nearest_centroid(normalize(x), centroids).numpy()[0, 0]


def draw(path):
    """Draws the maps side by side and writes them to `path` (.png, .svg or .pdf)."""
    maps, clusters = attention_maps()
    with drawing(path, dpi=110, figsize=(12, 4.6)) as figure:
        from matplotlib.colors import ListedColormap

        palette, axes = ListedColormap([*COLORS, GREY]), figure.subplots(1, len(maps))
        for axis, (name, seen) in zip(axes, maps.items()):
            routed = name.startswith("routing")
            color = clusters[:, None] if routed else np.full([LENGTH, 1], CLUSTERS)
            cells = np.where(seen, color, np.nan)
            axis.imshow(cells, cmap=palette, vmin=0, vmax=CLUSTERS, interpolation="nearest")
            title = f"{name}\n{seen.sum():,} of {LENGTH**2 // 2 + LENGTH // 2:,} pairs"
            axis.set(title=title, xlabel="key", ylabel="query", xticks=[], yticks=[])
            axis.set_xlim(-3.5, LENGTH - 0.5)
        colors = [COLORS[c] for c in clusters]
        places = np.full(LENGTH, -2), np.arange(LENGTH)
        axes[-1].scatter(*places, c=colors, marker="s", s=14, clip_on=False)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/pictures/routing_picture.py FILE")
    draw(sys.argv[1])
