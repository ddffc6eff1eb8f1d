"""The kinds of heads to compare, as keys of a configuration, and instead of full attention."""

from functools import partial

from rt_keras.benchmarks.speech import replacements

HEADS = 4
MEANINGS = {
    "full": "all positions",
    "clustered": "once for each of 100 groups of similar queries",
    "improved_clustered": "the same, and exact weights for the best 32 keys of each query",
    "lsh_1": "one round of the Reformer's hashing, with keys that are queries",
    "lsh_4": "four rounds",
    "local": "the blocks around a query, as the Longformer without global tokens",
    "nearest": "two local heads, and two that see the members of a query's nearest cluster",
    "local_routing": "half of the keys in a window and half in a cluster, under one softmax",
}


def head_keys(kind, keys, length):
    """Returns the keys of a configuration for the heads of a kind.

    Args:
        kind: string, a key of `MEANINGS`.
        keys: int, average number of keys that a query sees, at least 6.
        length: int, number of positions.

    Returns:
        A dictionary.

    >>> head_keys("local", keys=96, length=800)
    {'model.local.num_heads': 4, 'model.local.block_size': 32}
    """
    local = {"num_heads": HEADS, "block_size": keys // 3}
    lsh = {"num_heads": HEADS, "num_buckets": max(2, 2 * (length // keys)), "block_size": keys // 2}
    clustered = {"num_heads": HEADS, "num_clusters": min(100, length)}
    clusters = {"num_clusters": max(1, length // keys), "window_size": keys}
    half = {"num_clusters": max(1, 2 * length // keys), "window_size": keys // 2}
    sections = {
        "full": {"full": {"num_heads": HEADS}},
        "clustered": {"clustered": clustered},
        "improved_clustered": {"clustered": {**clustered, "top_k": 32}},
        "lsh_1": {"lsh": lsh},
        "lsh_4": {"lsh": {**lsh, "num_rounds": 4}},
        "local": {"local": local},
        "nearest": {
            "local": {**local, "num_heads": HEADS // 2},
            "routing": {"num_heads": HEADS - HEADS // 2, "assignment": "nearest", **clusters},
        },
        "local_routing": {
            "local_routing": {"num_heads": HEADS, "block_size": keys // 6, **half},
        },
    }
    return {
        f"model.{section}.{key}": value
        for section, values in sections[kind].items()
        for key, value in values.items()
    }


def model_keys(kind, layers, width, keys, length):
    """Returns the keys of a configuration for a model with the heads of a kind.

    Args:
        kind, keys, length: see `head_keys`.
        layers, width: ints, the number of blocks and their width.

    Returns:
        A dictionary.
    """
    return {
        "model.kind": "ctc",
        "model.num_layers": layers,
        "model.hidden_dim": width,
        "model.intermediate_dim": 4 * width,
        "model.sinusoidal_positions": True,
        "data.name": "speech_folder",
        "data.sequence_length": length,
        **head_keys(kind, keys, length),
    }


# What replaces full attention: functions of the number of heads, the keys and the length.
_CLUSTERED = partial(replacements.clustered, num_clusters=100)
REPLACEMENTS = {
    **{name: replacements.KINDS[name] for name in ("lsh_1", "lsh_4", "local", "local_routing")},
    "clustered": _CLUSTERED,
    "improved_clustered": partial(_CLUSTERED, top_k=32),
    "nearest": replacements.KINDS["nearest_2_probes"],
}
