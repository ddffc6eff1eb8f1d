"""The concentration of a pretrained model's attention, and the share that sets of keys cover."""

import textwrap

import numpy as np
import tensorflow as tf

from rt_keras.analysis.drawing import drawing
from rt_keras.data.tables import grouped, table
from rt_keras.layers.attention_calls import attention_calls
from rt_keras.layers.attention_inputs import AttentionInputs
from rt_keras.layers.heads import Heads
from rt_keras.layers.key_sets.first_tokens import FirstTokens
from rt_keras.layers.key_sets.selected_blocks import SelectedBlocks
from rt_keras.layers.key_sets.window import Window
from rt_keras.models.adapted.default_heads import FIRST_TOKENS, LOOK_BACK, SEGMENT_SIZE
from rt_keras.ops.blocks import repeat_heads

# Keys in a block.
BLOCK_SIZE = 8
# The share of the attention mass for which `keys` counts keys.
MASS = 0.9
# The measures of each head: headings, formats and titles of pictures.
SHARES = {
    "window": ("window", ".3f", "mass that the window has"),
    "first_tokens": ("first\ntokens", ".3f", "mass of the first tokens before it"),
    "blocks": ("blocks", ".3f", "mass of the best blocks of neighbors"),
    "content_blocks": ("content\nblocks", ".3f", "mass of the best blocks by content"),
    "best_keys": ("best\nkeys", ".3f", "mass of the best keys"),
}
MEASURES = {
    "keys": ("keys of\n90%", ",.0f", "keys that hold 90% of the mass"),
    "entropy": ("entropy\n(nats)", ".2f", "entropy in nats"),
    **SHARES,
}


def measure(model, token_ids, num_queries=64, num_keys=128):
    """Measures the concentration of attention, and the share that sets of keys cover, by head.

    The mass of a set of keys is the sum of their attention weights, exp(z_s - z), where z_s is the
    logsumexp of their logits and z that of all logits. Each figure is a mean over some queries of
    the second half of the sequence, so that only their logits are in memory.

    Args:
        model: an adapted causal language model whose layers have full attention or their own
            sliding window, such as `rt_keras.adapt(model, [FullHeads(1)], layers=[])`.
        token_ids: int array `[length]`.
        num_queries: int, the number of queries. Defaults to 64.
        num_keys: int, the maximum number of keys in each of the last three sets. Defaults to 128.

    Returns:
        A dictionary of `heads`, a list of dictionaries, one for each head of each layer:

        - `layer`, `head`: ints;
        - `keys`: the number of keys that hold 90% of the mass;
        - `entropy`: the entropy of the attention weights, in nats;
        - `window`: the mass of the keys in a query's block of 256 and the three previous blocks;
        - `first_tokens`: the mass of the first 4 tokens, outside the window;
        - `blocks`, `content_blocks`: the mass of the best blocks of 8 neighbors, and of the best
          blocks of 8 similar keys, outside both;
        - `best_keys`: the mass of the keys with the largest weights, outside both.

        The masses are None in layers with their own sliding window.

    Source: ours.
    """
    token_ids = tf.constant(np.asarray(token_ids)[None], tf.int32)
    length = token_ids.shape[1]
    places = np.unique(np.linspace(length // 2, length - 1, num_queries).astype(int))
    inputs = {"token_ids": token_ids, "padding_mask": tf.ones_like(token_ids)}
    figures = []
    for layer, call in enumerate(attention_calls(model.backbone, inputs)):
        ((group, (query, _, key), _),) = call.groups
        heads = _heads(group, query, key, places, num_keys)
        figures += [{"layer": layer, "head": number, **x} for number, x in enumerate(heads)]
    return {"heads": figures}


def _heads(group, query, key, places, num_keys):
    """Computes the figures of each head of a layer."""
    window = next((getattr(x, "sliding_window", None) for x in group.key_sets), None)
    weights, logsumexp = _weights(query, key, places, window)
    ordered = np.sort(weights, axis=-1)[..., ::-1]
    measures = {
        "keys": 1 + np.sum(np.cumsum(ordered, axis=-1) < MASS, axis=-1),
        "entropy": -np.sum(weights * np.log(np.maximum(weights, 1e-30)), axis=-1),
    }
    if window is None:
        for name, x in _logsumexps(query, key, tf.constant(places), num_keys).items():
            measures[name] = np.exp(x.numpy() - logsumexp)
        far = np.sort(weights * _far(places, weights.shape[-1]), axis=-1)
        measures["best_keys"] = far[..., -num_keys:].sum(-1)
    # [heads]
    means = {name: x.mean(-1) for name, x in measures.items()}
    return [
        {name: float(means[name][head]) if name in means else None for name in MEASURES}
        for head in range(len(weights))
    ]


def _weights(query, key, places, window):
    """Computes attention weights of some queries, `[heads, queries, length]`, and logsumexps."""
    # [heads, length, depth] and [heads, queries, depth]
    key = repeat_heads(key, query.shape[1])[0]
    query = tf.gather(query[0], places, axis=1) * query.shape[3] ** -0.5
    logits = tf.cast(tf.matmul(query, key, transpose_b=True), tf.float32).numpy()
    distance = places[:, None] - np.arange(logits.shape[-1])
    seen = (distance >= 0) & (distance < (window or logits.shape[-1]))
    logits = np.where(seen, logits, -np.inf)
    top = logits.max(-1, keepdims=True)
    weights = np.exp(logits - top)
    total = weights.sum(-1, keepdims=True)
    return weights / total, (top + np.log(total))[..., 0]


# One program for all layers of a model.
@tf.function(jit_compile=True)
def _logsumexps(query, key, places, num_keys):
    """Computes the logsumexp of the logits of each set of keys, `[heads, queries]`."""
    inputs, logsumexps = AttentionInputs(query, key, key[..., :1]), {}
    window, first = Window(SEGMENT_SIZE, look_back=LOOK_BACK), FirstTokens(FIRST_TOKENS)
    for name, by_content in (("blocks", False), ("content_blocks", True)):
        sizes = BLOCK_SIZE, num_keys // BLOCK_SIZE, SEGMENT_SIZE
        blocks = SelectedBlocks(*sizes, by_content=by_content)
        heads = Heads(query.shape[1], [window, first, blocks])
        for at, key_set in zip(("window", "first_tokens", name), heads.key_sets):
            if at not in logsumexps:
                _, logsumexp = key_set.attend(inputs, True)
                logsumexps[at] = tf.gather(logsumexp[0], places, axis=1)
    return logsumexps


def _far(places, length):
    """Returns the mask of keys outside the window and the first tokens, `[queries, length]`."""
    keys = np.arange(length)
    window = Window(SEGMENT_SIZE, look_back=LOOK_BACK)
    covered = window.covers(tf.constant(places)[:, None], tf.constant(keys))
    return ~covered.numpy() & (keys >= FIRST_TOKENS)


def report(figures):
    """Formats the means over the heads of each layer as lines of text.

    Args:
        figures: the dictionary that `measure` returned.

    Returns:
        A string.

    >>> head = {"layer": 0, "head": 0, **dict.fromkeys(MEASURES, 0.5), "keys": 12.0}
    >>> print(report({"heads": [head]}))
    mass of attention, means over heads
    <BLANKLINE>
          keys of  entropy           first          content   best
    layer     90%   (nats)  window  tokens  blocks   blocks   keys
        0      12     0.50   0.500   0.500   0.500    0.500  0.500
    """
    columns = {"layer": ",", **{heading: spec for heading, spec, _ in MEASURES.values()}}
    layers = grouped(figures["heads"], lambda row: row["layer"])
    rows = [
        [layer, *(_mean([row[name] for row in heads]) for name in MEASURES)]
        for layer, heads in layers.items()
    ]
    return f"mass of attention, means over heads\n\n{table(columns, rows)}"


def _mean(values):
    return None if None in values else sum(values) / len(values)


def draw(figures, path):
    """Draws each measure as an image of layers (rows) and heads (columns).

    Args:
        figures: the dictionary that `measure` returned.
        path: string or `Path`, the file to write. Its extension (`.png`, `.svg` or `.pdf`) sets the
            format.
    """
    rows = figures["heads"]
    shape = [1 + max(row[name] for row in rows) for name in ("layer", "head")]
    size = 2.2 * len(MEASURES), max(3, 1 + 0.2 * shape[0])
    with drawing(path, dpi=110, figsize=size) as figure:
        axes = figure.subplots(1, len(MEASURES), sharey=True)
        for axis, (name, (_, _, title)) in zip(axes, MEASURES.items()):
            image = np.full(shape, np.nan)
            for row in rows:
                image[row["layer"], row["head"]] = row[name]
            # Masses share one scale.
            scale = {"vmin": 0, "vmax": 1} if name in SHARES else {"vmin": 0}
            drawn = axis.imshow(image, cmap="viridis", aspect="auto", **scale)
            axis.set_title(textwrap.fill(title, 22), fontsize=8)
            axis.set_xlabel("head")
            figure.colorbar(drawn, ax=axis, shrink=0.7)
        axes[0].set_ylabel("layer")
