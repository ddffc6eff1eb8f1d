"""Which tokens attend to which in a text: the weights of a model's heads, and plots of them."""

from pathlib import Path

import numpy as np
import tensorflow as tf

from rt_keras import extras
from rt_keras.files import whole_file


def attention_maps(model, text):
    """The attention weights of every head of a language model on a text.

    Args:
        model: a `RoutingTransformerCausalLM` with a preprocessor.
        text: string of at most a few hundred tokens, since all pairs of them are computed.

    Returns:
        A dictionary of
        - `tokens`: list of n strings, what each position reads, the start token first;
        - `heads`: for each layer, the list of the kinds of its heads, such as "RoutingHeads";
        - `weights`: for each layer, an array `[heads, n, n]` over queries and keys.
    """
    tokenizer = model.preprocessor.tokenizer
    ids = np.asarray([tokenizer.start_token_id, *np.asarray(tokenizer(text)).tolist()])
    backbone, mask = model.backbone, tf.ones([1, len(ids)], tf.int32)
    x = backbone.embedding(tf.constant(ids[None], tf.int32))
    weights, heads = [], []
    for block in backbone.transformer_blocks:
        x, scores = block(x, padding_mask=mask, use_causal_mask=True, return_attention_scores=True)
        weights.append(np.asarray(tf.cast(scores[0], tf.float32)))
        heads.append([name for group in block.attention.head_groups for name in _names(group)])
    return {"tokens": _readable(tokenizer, ids), "heads": heads, "weights": weights}


def _names(group):
    return [type(group).__name__] * group.num_heads


def _readable(tokenizer, ids):
    """The text of each token, with bytes that are not UTF-8 escaped."""
    texts = [np.asarray(tokenizer.detokenize([int(x)])).item() for x in ids]
    texts = [text.encode() if isinstance(text, str) else text for text in texts]
    return [text.decode("utf-8", errors="backslashreplace") for text in texts]


def draw(maps, path):
    """Draws each head of each layer as an image of queries (rows) and keys (columns).

    Args:
        maps: what `attention_maps` returned.
        path: string or `Path`, the file to write; its ending (`.png`, `.svg` or `.pdf`) sets the
            format.
    """
    with extras.needed("plot", "Drawing"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

    path, tokens = Path(path), maps["tokens"]
    rows, columns = len(maps["weights"]), max(len(heads) for heads in maps["heads"])
    figure = Figure(figsize=(4 * columns, 4 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False)
    for layer, (weights, heads) in enumerate(zip(maps["weights"], maps["heads"])):
        for axis in axes[layer, len(heads) :]:
            axis.set_axis_off()
        for head, kind in enumerate(heads):
            axis = axes[layer, head]
            # The square root makes small weights visible beside large ones.
            axis.imshow(np.sqrt(weights[head]), cmap="Greys", vmin=0, vmax=1)
            axis.set_title(f"layer {layer}, head {head}: {kind}", fontsize=9)
            if len(tokens) <= 64:
                labels = [token.replace("\n", "\\n") for token in tokens]
                axis.set_xticks(range(len(tokens)), labels, fontsize=5, rotation=90)
                axis.set_yticks(range(len(tokens)), labels, fontsize=5)
    figure.suptitle("queries down, keys across; the darker, the more weight", fontsize=10)
    with whole_file(path, suffix=path.suffix) as part:
        figure.savefig(part, dpi=110)


def strongest(maps, layer, head, least=0.2):
    """The pairs of different positions with a large weight, to read beside the plot.

    Args:
        maps: what `attention_maps` returned.
        layer: int, the layer, from 0.
        head: int, the head, from 0.
        least: float, the least weight of a pair. Defaults to 0.2.

    Returns:
        A list of dictionaries of `query` and `key` (positions), `tokens` (both) and `weight`, those
        that are furthest apart first.
    """
    weights, tokens = maps["weights"][layer][head], maps["tokens"]
    pairs = [(int(q), int(k)) for q, k in np.argwhere(weights >= least) if q != k]
    return [
        {
            "query": q,
            "key": k,
            "tokens": (tokens[q], tokens[k]),
            "weight": float(weights[q, k]),
        }
        for q, k in sorted(pairs, key=lambda pair: pair[1] - pair[0])
    ]
