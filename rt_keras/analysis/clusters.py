"""The clusters of a language model's heads: their sizes, and which tokens share one."""

import numpy as np
import tensorflow as tf

from rt_keras import progress
from rt_keras.analysis.attention_map import text_of
from rt_keras.callbacks.centroid_ema import cluster_use, routing_heads
from rt_keras.data import ByteTokenizer
from rt_keras.layers.attention_calls import attention_calls
from rt_keras.tables import table

# A token that a cluster has less often than this says little about it.
LEAST_COUNT = 3
# How many tokens tell of a cluster, and how many clusters of a head are printed.
TOKENS = 8
CLUSTERS = 8
# A byte is shown after as many others; other tokens speak for themselves.
BYTES_BEFORE = 4


def find(model, sequences, verbose=0):
    """The clusters of queries and keys in every head that has centroids.

    The cluster of a query or a key is that of its nearest centroid, the one that learns from it. In
    "balanced" routing, clusters then pick members of their own.

    Args:
        model: a `RoutingTransformerCausalLM`, or an adapted causal language model.
        sequences: int array `[count, length]`, tokens.
        verbose: int, 1 for a progress bar. Defaults to 0.

    Returns:
        A list of dictionaries, one for the queries and, if they are clustered too, one for the keys
        of each head, of `layer`, `head` (its number in the layer), `kind`, `of` ("queries" or
        "keys"), `num_clusters` and `clusters`, an int array `[count, length]`.

    Raises:
        ValueError: if no heads of the model have centroids.
    """
    if not routing_heads(model):
        raise ValueError(
            "model must have heads with clusters, such as RoutingHeads, in some layer. It has none."
        )
    parts = [
        _of_sequence(model, tokens[None])
        for tokens in progress.track(
            sequences, "finding clusters", len(sequences), "sequences", verbose
        )
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
            "kind": type(group).__name__,
            "of": source,
            "num_clusters": group.num_clusters,
            "clusters": clusters[:, head],
        }
        for call in attention_calls(model, inputs)
        for group, first, sources in call.clusters()
        for head in range(group.num_heads)
        for source, clusters in sources.items()
    ]


def measure(found, sequences, tokenizer):
    """The sizes of clusters, and the tokens that are most characteristic of each.

    A token t is the more characteristic of a cluster c, the more it adds to the divergence between
    the tokens of the cluster and all tokens:

    ```
    score = n_tc ln(ratio),   ratio = (n_tc / n_c) / (n_t / n)
    ```

    with n the numbers of positions in all, in the cluster, with the token, and with both. Tokens
    that a cluster has less than three times, or no more often than others do, are left out.

    Args:
        found: what `find` returned.
        sequences: the tokens that it was given.
        tokenizer: the tokenizer of the model.

    Returns:
        A dictionary of `heads`, a list of the dictionaries of `found` without `clusters` but with
        - `entropy`: of the shares of the clusters over log(clusters), 1 if all are equal;
        - `empty`: the number of empty clusters;
        - `loads`: for each cluster, its share of the positions over an equal share, 1 if even;
        - `contents`: for each cluster, a list of up to eight dictionaries of `token`, `before` (in
          models of bytes, the four most frequent bytes before it in the cluster), `count` and
          `ratio`, the most characteristic token first.
    """
    return {"heads": [_measure_head(head, sequences, tokenizer) for head in found]}


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
    """The tokens that are most characteristic of one cluster; see `measure`.

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
    """The most frequent bytes before chosen positions; nothing for other tokens."""
    if not isinstance(tokenizer, ByteTokenizer):
        return ""
    # Padding, which has no text, comes before the first position.
    padded = np.pad(sequences, [(0, 0), (BYTES_BEFORE, 0)], constant_values=tokenizer.pad_token_id)
    windows = np.lib.stride_tricks.sliding_window_view(padded[:, :-1], BYTES_BEFORE, axis=1)
    different, counts = np.unique(windows[chosen], axis=0, return_counts=True)
    return text_of(tokenizer, different[counts.argmax()])


def report(figures):
    """The figures of `measure` as lines of text.

    Args:
        figures: what `measure` returned.

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
    """A token on one line, after what is often before it.

    >>> _written({"token": "e", "before": "\\n th", "count": 4, "ratio": 2.345})
    '\\\\n␣th[e] 2.3x'
    """
    token, before = visible(content["token"]), visible(content["before"])
    return f"{f'{before}[{token}]' if before else token} {content['ratio']:.1f}x"


def visible(text):
    """Text without blanks and control characters.

    >>> visible("a b\\n")
    'a␣b\\\\n'
    """
    shown = (c if c.isprintable() else repr(c)[1:-1] for c in text)
    return "".join(shown).replace(" ", "␣")
