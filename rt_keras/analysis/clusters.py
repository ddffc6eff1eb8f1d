"""The clusters of a language model's heads: their sizes and their tokens."""

import numpy as np
import tensorflow as tf

from rt_keras.analysis.attention_map import readable, text_of
from rt_keras.analysis.drawing import drawing
from rt_keras.callbacks.centroid_ema import cluster_use
from rt_keras.data import progress
from rt_keras.data.byte_tokenizer import ByteTokenizer
from rt_keras.data.tables import grouped, table
from rt_keras.layers.attention_calls import attention_calls
from rt_keras.layers.centroids import centroids_inside

# Tokens that occur less often in a cluster are not characteristic of it.
LEAST_COUNT = 3
# The number of tokens reported for a cluster, and of clusters printed for a head.
TOKENS = 8
CLUSTERS = 8
# The number of previous bytes shown with a byte. Other tokens are shown alone.
BYTES_BEFORE = 4
# The maximum number of positions with legible labels.
POSITIONS = 128


def find(model, sequences, verbose=0):
    """Finds the clusters of queries and keys in every head that has centroids.

    The cluster of a query or a key is that of its nearest centroid, which learns from it. In
    "balanced" routing, the clusters choose other members for attention.

    Args:
        model: a `RoutingTransformerCausalLM`, or an adapted causal language model.
        sequences: int array `[count, length]`, tokens.
        verbose: int, 1 for a progress bar. Defaults to 0.

    Returns:
        A list of dictionaries, one for the queries of each head and, if they are clustered, one for
        its keys. Each has `layer`, `head` (its index in the layer), `kind`, `of` ("queries" or
        "keys"), `num_clusters` and `clusters`, an int array `[count, length]`.

    Raises:
        ValueError: if no head of the model has centroids.
    """
    if not centroids_inside(model):
        raise ValueError(
            "model must have heads with clusters, such as RoutingHeads, in a layer. It has none."
        )
    parts = [
        _of_sequence(model, tokens[None])
        for tokens in progress.track(sequences, "finding clusters", len(sequences), verbose)
    ]
    # Each part lists the same heads.
    return [
        {**heads[0], "clusters": np.concatenate([head["clusters"] for head in heads])}
        for heads in zip(*parts)
    ]


def _of_sequence(model, tokens):
    tokens = tf.constant(tokens, tf.int32)
    inputs = {"token_ids": tokens, "padding_mask": tf.ones_like(tokens)}
    return [
        {
            "layer": call.name,
            "head": first + head,
            "kind": group.kind,
            "of": source,
            "num_clusters": group.centroids.num_clusters,
            "clusters": clusters[:, head],
        }
        for call in attention_calls(model, inputs)
        for group, first, sources in call.clusters()
        for head in range(group.num_heads)
        for source, clusters in sources.items()
    ]


def measure(heads, sequences, tokenizer):
    """Measures the sizes of clusters, and finds the most characteristic tokens of each.

    The score of a token t in a cluster c is its contribution to the divergence between the tokens
    of the cluster and all tokens:

    ```
    score = n_tc ln(ratio),   ratio = (n_tc / n_c) / (n_t / n)
    ```

    where n is the number of positions: all of them, those in the cluster (n_c), those with the
    token (n_t), and those with both (n_tc). Tokens are left out if they occur in the cluster fewer
    than three times, or not more often than in all positions.

    Args:
        heads: the list that `find` returned.
        sequences: the tokens passed to `find`.
        tokenizer: the tokenizer of the model.

    Returns:
        A dictionary of `heads`, the dictionaries of `heads` without `clusters` but with
        - `entropy`: the entropy of the shares of the clusters over log(clusters), 1 if all shares
          are equal;
        - `empty`: the number of empty clusters;
        - `loads`: for each cluster, its number of positions relative to the mean;
        - `contents`: for each cluster, a list of up to eight dictionaries of `token`, `before` (in
          models of bytes, the four most frequent bytes before it in the cluster), `count` and
          `ratio`, the most characteristic token first.
    """
    return {"heads": [_measure_head(head, sequences, tokenizer) for head in heads]}


def _measure_head(head, sequences, tokenizer):
    clusters, number = head["clusters"], head["num_clusters"]
    sizes = np.bincount(clusters.ravel(), minlength=number)
    _, empty, entropy = cluster_use(tf.constant(sizes[None], tf.float32))
    return {
        **{name: value for name, value in head.items() if name != "clusters"},
        "entropy": float(entropy),
        "empty": int(empty),
        "loads": (sizes / sizes.mean()).tolist(),
        "contents": [contents(sequences, clusters == c, tokenizer) for c in range(number)],
    }


def contents(sequences, member, tokenizer):
    """Finds the most characteristic tokens of one cluster; see `measure`.

    Args:
        sequences: int array `[count, length]`, tokens.
        member: bool array `[count, length]`, the positions in the cluster.
        tokenizer: the tokenizer of the tokens.

    Returns:
        A list of dictionaries of `token`, `before`, `count` and `ratio`.

    >>> tokens = np.array([list(b"abababababcc")]) + 2
    >>> contents(tokens, tokens == ord("b") + 2, ByteTokenizer())
    [{'token': 'b', 'before': 'baba', 'count': 5, 'ratio': 2.4}]
    """
    overall = np.bincount(sequences.ravel())
    inside = np.bincount(sequences[member], minlength=len(overall))
    share, share_inside = overall / overall.sum(), inside / max(inside.sum(), 1)
    candidates = np.flatnonzero((inside >= LEAST_COUNT) & (share_inside > share))
    ratio = share_inside[candidates] / share[candidates]
    best = np.argsort(-inside[candidates] * np.log(ratio), kind="stable")[:TOKENS]
    return [
        {
            "token": text_of(tokenizer, [token]) or tokenizer.id_to_token(int(token)),
            "before": _before(sequences, member & (sequences == token), tokenizer),
            "count": int(inside[token]),
            "ratio": float(ratio[i]),
        }
        for i, token in zip(best, candidates[best])
    ]


def _before(sequences, chosen, tokenizer):
    """Returns the most frequent bytes before some positions, or "" if tokens are not bytes."""
    if not isinstance(tokenizer, ByteTokenizer):
        return ""
    # Padding, which has no text, comes before the first position.
    padded = np.pad(sequences, [(0, 0), (BYTES_BEFORE, 0)], constant_values=tokenizer.pad_token_id)
    windows = np.lib.stride_tricks.sliding_window_view(padded[:, :-1], BYTES_BEFORE, axis=1)
    different, counts = np.unique(windows[chosen], axis=0, return_counts=True)
    return text_of(tokenizer, different[counts.argmax()])


def report(figures):
    """Formats the figures of `measure` as lines of text.

    Args:
        figures: the dictionary that `measure` returned.

    Returns:
        A string.
    """
    return "\n\n".join(map(_report_head, figures["heads"]))


def _report_head(head):
    loads = head["loads"]
    fullest = sorted(range(len(loads)), key=lambda c: -loads[c])[:CLUSTERS]
    shown = f"; the {len(fullest)} fullest:" if len(fullest) < len(loads) else ":"
    rows = [(c, loads[c], "  ".join(map(_written, head["contents"][c]))) for c in fullest]
    columns = {"cluster": ",", "load": ".2f", "tokens more frequent than overall, and how much": ""}
    return (
        f"{head['layer']}, head {head['head']} ({head['kind']}), {head['of']}: entropy "
        f"{head['entropy']:.2f} of 1, {head['empty']:,} of {len(loads):,} clusters empty{shown}\n"
        f"{table(columns, rows)}"
    )


def _written(content):
    """Formats a token on one line, after the bytes that often precede it.

    >>> _written({"token": "e", "before": "\\n th", "count": 4, "ratio": 2.345})
    '\\\\n␣th[e] 2.3x'
    """
    token, before = visible(content["token"]), visible(content["before"])
    return f"{f'{before}[{token}]' if before else token} {content['ratio']:.1f}x"


def visible(text):
    """Replaces spaces and control characters in a text by visible ones.

    >>> visible("a b\\n")
    'a␣b\\\\n'
    """
    shown = (c if c.isprintable() else repr(c)[1:-1] for c in text)
    return "".join(shown).replace(" ", "␣")


def draw(heads, tokens, tokenizer, path):
    """Draws the clusters of the first 128 positions of a sequence, one color per cluster.

    Args:
        heads: the list that `rt_keras.analysis.clusters.find` returned. Only its first sequence is
            drawn.
        tokens: int array `[length]`, the tokens of that sequence.
        tokenizer: the tokenizer of the model.
        path: string or `Path`, the file to write. Its extension (`.png`, `.svg` or `.pdf`) sets the
            format.
    """
    labels = list(map(visible, readable(tokenizer, tokens[:POSITIONS])))
    layers = grouped(heads, lambda head: head["layer"])
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
