"""Draws the cluster of each position of a sequence, for each head with clusters."""

import numpy as np

from rt_keras.analysis.attention_map import readable
from rt_keras.analysis.clusters import visible
from rt_keras.drawing import drawing

# The maximum number of positions with legible labels.
POSITIONS = 128


def draw(found, tokens, tokenizer, path):
    """Draws the clusters of the first 128 positions of a sequence, one color per cluster.

    Args:
        found: the list that `rt_keras.analysis.clusters.find` returned. Only its first sequence is
            drawn.
        tokens: int array `[length]`, the tokens of that sequence.
        tokenizer: the tokenizer of the model.
        path: string or `Path`, the file to write. Its extension (`.png`, `.svg` or `.pdf`) sets the
            format.
    """
    labels, layers = list(map(visible, readable(tokenizer, tokens[:POSITIONS]))), {}
    for head in found:
        layers.setdefault(head["layer"], []).append(head)
    heights = [len(heads) + 2 for heads in layers.values()]
    size = (2.5 + 0.12 * len(labels), 0.5 + 0.25 * sum(heights))
    with drawing(path, dpi=110, figsize=size) as figure:
        axes = figure.subplots(len(layers), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axis, (layer, heads) in zip(axes, layers.items()):
            # One color scale for all rows, so that a color is the same cluster in each row.
            most = max(head["num_clusters"] for head in heads)
            rows = np.stack([head["clusters"][0, :POSITIONS] for head in heads])
            colours = "tab20" if most <= 20 else "nipy_spectral"
            axis.imshow(rows, cmap=colours, vmin=0, vmax=max(most, 20) - 1, aspect="auto")
            axis.set_title(f"{layer}: the cluster of each position", fontsize=9)
            axis.set_xticks(range(len(labels)), labels, fontsize=5)
            names = [f"head {head['head']}, {head['of']}" for head in heads]
            axis.set_yticks(range(len(heads)), names, fontsize=6)
