"""The kinds of heads that a pretrained model gets in the place of full attention.

A kind is a name, and options of its set of keys behind colons: `oracle:num_keys=64`. All that read
a number of keys further away have the same window beside them, and in decoders the first tokens.
"""

from rt_keras import config_files

# Centroids of clustered attention in decoders and in encoders.
CLUSTERS, ENCODER_CLUSTERS = 100, 25
# What a query of an encoder sees, its window included: where there is a choice.
ENCODER_KEYS = 64
_CHOSEN = {
    "random": "those, and random keys",
    "oracle": "those, and the keys with the largest logits",
    "blocks": "those, and the blocks of neighbours that suit a query best",
    "content_blocks": "those, and the blocks of keys that are alike that suit a query best",
}
MEANINGS = {
    "keras_hub": "the model as KerasHub computes it",
    "full": "every key, in blocks",
    "window": "a window",
    "window_first": "a window and the first tokens",
    **_CHOSEN,
    "clustered": "a block, and everything before it as a centroid sees it",
}
ENCODER_MEANINGS = {
    "full": "every key",
    "window": "a window of so many keys as others see",
    **_CHOSEN,
    "nearest": "the keys of a query's cluster, around it",
    "clustered": "what the mean of a query's group sees",
    "improved_clustered": "the same, with weights of its own for the group's best keys",
}


def meanings(causal):
    """The kinds of decoders or of encoders, and what each sees, a dictionary."""
    return MEANINGS if causal else ENCODER_MEANINGS


def head_groups(name, heads, causal=True):
    """The heads of a layer.

    Args:
        name: string, a kind and its options.
        heads: int, how many.
        causal: bool, whether they are those of a decoder. Defaults to True.

    Returns:
        A list of one head group; None for the model as KerasHub computes it.

    Raises:
        ValueError: if there is no such kind, or it has no such options.

    >>> head_groups("oracle:num_keys=64", 2)[0].key_sets[2]
    ChosenKeys(num_keys=64)
    """
    from rt_keras.layers import CausalClusteredHeads, ClusteredHeads, FullHeads, Heads
    from rt_keras.layers.key_sets import Window
    from rt_keras.models.adapted.default_heads import SEGMENT_SIZE, sets_beside

    kind, *assignments = name.split(":")
    if kind not in meanings(causal):
        raise ValueError(f"--kinds must be of {', '.join(meanings(causal))}. Received: {name}")
    options, beside = dict(map(config_files.parse_assignment, assignments)), sets_beside(causal)
    if kind in _CHOSEN:
        return [Heads(heads, [*beside, _key_set(kind, options, causal)])]
    if kind == "nearest":
        return [Heads(heads, [_key_set(kind, options, causal)])]
    if options:
        raise ValueError(f"--kinds {kind} has no options. Received: {name}")
    if not causal:
        half = ENCODER_KEYS // 2
        beside = [Window(half, sliding_window=half + 1)]
    return {
        "keras_hub": lambda: None,
        "full": lambda: [FullHeads(heads)],
        "window": lambda: [Heads(heads, beside[:1])],
        "window_first": lambda: [Heads(heads, beside)],
        "clustered": lambda: [
            CausalClusteredHeads(heads, CLUSTERS, SEGMENT_SIZE)
            if causal
            else ClusteredHeads(heads, ENCODER_CLUSTERS, seed=0)
        ],
        "improved_clustered": lambda: [
            ClusteredHeads(heads, ENCODER_CLUSTERS, top_k=ENCODER_KEYS, seed=0)
        ],
    }[kind]()


def _key_set(kind, options, causal):
    """The set of the keys that a kind finds, or reads as the cluster of a query."""
    from rt_keras.benchmarks.pretrained.chosen_keys import ChosenKeys
    from rt_keras.layers.key_sets import Cluster, SelectedBlocks
    from rt_keras.layers.key_sets.key_set import options_of
    from rt_keras.models.adapted.default_heads import KEYS, block_options, sets_beside

    keys = KEYS
    if not causal:
        # A block, and the one on either side.
        keys = ENCODER_KEYS - 3 * sets_beside(causal)[0].block_size
    of_cluster = {"routed_key": "key", "kernel_size": 1, "normalize": False, "scaled": False}
    # The class, what makes the kind what it is, and what can be chosen.
    cls, fixed, defaults = {
        "random": (ChosenKeys, {"at_random": True}, {"num_keys": keys}),
        "oracle": (ChosenKeys, {"at_random": False}, {"num_keys": keys}),
        "blocks": (SelectedBlocks, {"by_content": False}, block_options(causal, keys)),
        "content_blocks": (SelectedBlocks, {"by_content": True}, block_options(causal, keys)),
        "nearest": (Cluster, of_cluster, {"num_clusters": 8, "window_size": ENCODER_KEYS}),
    }[kind]
    known = [field.name for field in options_of(cls) if field.name not in fixed]
    unknown = [option for option in options if option not in known]
    if unknown:
        raise ValueError(
            f"--kinds {kind} has the options {', '.join(known)}. Received: {', '.join(unknown)}"
        )
    return cls(**{**defaults, **fixed, **options})


def line_of(name):
    """The kind without the numbers of what it reads, which a line of a picture goes along.

    >>> line_of("blocks:block_size=8:num_blocks=16")
    'blocks:block_size=8'
    """
    return ":".join(part for part in name.split(":") if not part.startswith("num_"))
