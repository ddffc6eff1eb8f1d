"""Draws which cluster each position of a sequence is in, for each head that has clusters."""

from pathlib import Path

import numpy as np

from rt_keras import extras
from rt_keras.analysis.attention_map import readable
from rt_keras.analysis.clusters import visible
from rt_keras.files import whole_file

# As many positions as can be labelled.
POSITIONS = 128


def draw(found, tokens, tokenizer, path):
    """Draws the clusters of the first 128 positions of a sequence, a colour for each cluster.

    Args:
        found: what `rt_keras.analysis.clusters.find` returned, of which the first sequence counts.
        tokens: int array `[length]`, the tokens of that sequence.
        tokenizer: the tokenizer of the model.
        path: string or `Path`, the file to write; its ending (`.png`, `.svg` or `.pdf`) sets the
            format.
    """
    with extras.needed("plot", "Drawing"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

    path, labels = Path(path), list(map(visible, readable(tokenizer, tokens[:POSITIONS])))
    layers = {layer: [h for h in found if h["layer"] == layer] for layer in _layers(found)}
    heights = [len(heads) + 2 for heads in layers.values()]
    size = (2.5 + 0.12 * len(labels), 0.5 + 0.25 * sum(heights))
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(layers), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, (layer, heads) in zip(axes, layers.items()):
        # Over the largest number, so that the same colour is the same cluster in each row.
        most = max(head["num_clusters"] for head in heads)
        rows = np.stack([head["clusters"][0, :POSITIONS] for head in heads])
        colours = "tab20" if most <= 20 else "nipy_spectral"
        axis.imshow(rows, cmap=colours, vmin=0, vmax=max(most, 20) - 1, aspect="auto")
        axis.set_title(f"{layer}: the cluster of each position", fontsize=9)
        axis.set_xticks(range(len(labels)), labels, fontsize=5)
        names = [f"head {head['head']}, {head['of']}" for head in heads]
        axis.set_yticks(range(len(heads)), names, fontsize=6)
    with whole_file(path, suffix=path.suffix) as part:
        figure.savefig(part, dpi=110)


def _layers(found):
    return dict.fromkeys(head["layer"] for head in found)
