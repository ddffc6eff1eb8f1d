"""The attention weights of a model's heads on a text, and plots of them."""

import numpy as np
import tensorflow as tf

from rt_keras.analysis.drawing import drawing
from rt_keras.layers.attention_calls import attention_calls
from rt_keras.models.generation import start_tokens


def attention_maps(model, text):
    """Computes the attention weights of every head of a language model on a text.

    Args:
        model: a `RoutingTransformerCausalLM`, or an adapted one, with a preprocessor.
        text: string of at most a few hundred tokens, because weights of all pairs are computed.

    Returns:
        A dictionary of
        - `tokens`: list of n strings, the token at each position, the start token, if any, first;
        - `heads`: for each layer, the list of the kinds of its heads, such as "RoutingHeads";
        - `weights`: for each layer, an array `[heads, n, n]` over queries and keys.
    """
    tokenizer = model.preprocessor.tokenizer
    ids = np.asarray([*start_tokens(model.preprocessor), *np.asarray(tokenizer(text)).tolist()])
    inputs = {"token_ids": tf.constant(ids[None], tf.int32)}
    inputs["padding_mask"] = tf.ones_like(inputs["token_ids"])
    return {"tokens": readable(tokenizer, ids), **first_positions(model, inputs)}


def first_positions(model, inputs, count=None):
    """Computes the attention weights of every head on the first positions of a sequence.

    Args:
        model: any model of `rt_keras.models`.
        inputs: a batch of inputs of the model. Only its first sequence is used.
        count: int, the number of queries and of keys, at most a few hundred, because weights of all
            pairs are returned. The model runs on the whole sequence. Defaults to None, for all
            positions.

    Returns:
        A dictionary of `heads` and `weights`, as from `attention_maps`.
    """
    heads, weights = [], []
    for call in attention_calls(model, inputs):
        parts = [part[0, :, :count, :count].numpy() for part in call.weights(count)]
        weights.append(np.concatenate(parts, axis=-1))
        heads.append(call.kinds)
    return {"heads": heads, "weights": weights}


def readable(tokenizer, ids):
    """Returns the text of each token, with escaped bytes where it is not UTF-8."""
    return [text_of(tokenizer, [x]) for x in ids]


def text_of(tokenizer, ids):
    """Returns the joint text of some tokens, with escaped bytes where it is not UTF-8.

    Args:
        tokenizer: a tokenizer of `rt_keras.data`.
        ids: list of ints.

    Returns:
        A string.

    >>> from rt_keras.data import ByteTokenizer
    >>> text_of(ByteTokenizer(), [106, 107, 0xC3 + 2])
    'hi\\\\xc3'
    """
    text = np.asarray(tokenizer.detokenize([int(x) for x in ids])).item()
    text = text.encode() if isinstance(text, str) else text
    return text.decode("utf-8", errors="backslashreplace")


def draw(maps, path, chosen=None):
    """Draws heads as images of queries (rows) and keys (columns), one row of heads for each layer.

    Args:
        maps: the dictionary that `attention_maps` returned.
        path: string or `Path`, the file to write. Its extension (`.png`, `.svg` or `.pdf`) sets the
            format.
        chosen: list of pairs (layer, head), both from 0. Defaults to None, for all heads.
    """
    if chosen is None:
        chosen = [(i, head) for i, heads in enumerate(maps["heads"]) for head in range(len(heads))]
    layers = {layer: [head for i, head in chosen if i == layer] for layer, _ in chosen}
    columns = max(len(heads) for heads in layers.values())
    with drawing(path, dpi=110, figsize=(4 * columns, 4 * len(layers))) as figure:
        rows = figure.subplots(len(layers), columns, squeeze=False)
        for axes, (layer, heads) in zip(rows, layers.items()):
            for axis in axes[len(heads) :]:
                axis.set_axis_off()
            for axis, head in zip(axes, heads):
                _draw_head(axis, maps, layer, head)
        figure.suptitle("queries down, keys across; the darker, the more weight", fontsize=10)


def _draw_head(axis, maps, layer, head):
    # The square root makes small weights visible next to large ones.
    axis.imshow(np.sqrt(maps["weights"][layer][head]), cmap="Greys", vmin=0, vmax=1)
    axis.set_title(f"layer {layer}, head {head}: {maps['heads'][layer][head]}", fontsize=9)
    if len(maps["tokens"]) <= 64:
        labels = [token.replace("\n", "\\n") for token in maps["tokens"]]
        axis.set_xticks(range(len(labels)), labels, fontsize=5, rotation=90)
        axis.set_yticks(range(len(labels)), labels, fontsize=5)


def strongest(maps, layer, head, least=0.2):
    """Lists the pairs of different positions with a large weight.

    Args:
        maps: the dictionary that `attention_maps` returned.
        layer: int, the layer, from 0.
        head: int, the head, from 0.
        least: float, the minimum weight of a pair. Defaults to 0.2.

    Returns:
        A list of dictionaries of `query` and `key` (positions), `tokens` (of both) and `weight`, in
        order of decreasing distance.
    """
    weights, tokens = maps["weights"][layer][head], maps["tokens"]
    pairs = [(int(q), int(k)) for q, k in np.argwhere(weights >= least) if q != k]
    return [
        {"query": q, "key": k, "tokens": (tokens[q], tokens[k]), "weight": float(weights[q, k])}
        for q, k in sorted(pairs, key=lambda pair: pair[1] - pair[0])
    ]
