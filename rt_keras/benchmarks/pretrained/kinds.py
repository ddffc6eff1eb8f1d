"""The kinds of heads that a pretrained model gets in the place of full attention.

A kind is a name, and options of its set of keys behind colons: `oracle:num_keys=64`. All that read
a number of keys further back have the same window and first tokens beside them.
"""

from rt_keras import config_files

# Centroids of clustered attention.
CLUSTERS = 100
MEANINGS = {
    "keras_hub": "the model as KerasHub computes it",
    "full": "every key, in blocks",
    "window": "a window",
    "window_first": "a window and the first tokens",
    "random": "those, and random keys",
    "oracle": "those, and the keys with the largest logits",
    "blocks": "those, and the blocks of neighbours that suit a query best",
    "content_blocks": "those, and the blocks of keys that are alike that suit a query best",
    "clustered": "a block, and everything before it as a centroid sees it",
}
# What makes the kinds that read a number of keys further back what they are.
FIXED = {
    "random": {"at_random": True},
    "oracle": {"at_random": False},
    "blocks": {"by_content": False},
    "content_blocks": {"by_content": True},
}


def head_groups(name, heads):
    """The heads of a layer.

    Args:
        name: string, a kind and its options.
        heads: int, how many.

    Returns:
        A list of one head group; None for the model as KerasHub computes it.

    Raises:
        ValueError: if there is no such kind, or it has no such options.

    >>> head_groups("oracle:num_keys=64", 2)[0].key_sets[2]
    ChosenKeys(num_keys=64)
    """
    from rt_keras.layers import CausalClusteredHeads, FullHeads, Heads
    from rt_keras.layers.key_sets import FirstTokens, Window
    from rt_keras.models.adapted.default_heads import FIRST_TOKENS, LOOK_BACK, SEGMENT_SIZE

    kind, *assignments = name.split(":")
    if kind not in MEANINGS:
        raise ValueError(f"--kinds must be of {', '.join(MEANINGS)}. Received: {name}")
    options = dict(map(config_files.parse_assignment, assignments))
    window, first = Window(SEGMENT_SIZE, look_back=LOOK_BACK), FirstTokens(FIRST_TOKENS)
    if kind in FIXED:
        return [Heads(heads, [window, first, _chosen(kind, options)])]
    if options:
        raise ValueError(f"--kinds {kind} has no options. Received: {name}")
    return {
        "keras_hub": lambda: None,
        "full": lambda: [FullHeads(heads)],
        "window": lambda: [Heads(heads, [window])],
        "window_first": lambda: [Heads(heads, [window, first])],
        "clustered": lambda: [CausalClusteredHeads(heads, CLUSTERS, SEGMENT_SIZE)],
    }[kind]()


def _chosen(kind, options):
    """The set of the keys that a kind finds."""
    from rt_keras.benchmarks.pretrained.chosen_keys import ChosenKeys
    from rt_keras.layers.key_sets import SelectedBlocks
    from rt_keras.layers.key_sets.key_set import options_of
    from rt_keras.models.adapted.default_heads import BLOCK_SIZE, KEYS, SEGMENT_SIZE

    cls, defaults = ChosenKeys, {"num_keys": KEYS}
    if "by_content" in FIXED[kind]:
        # As `rt_keras.adapt` has them.
        cls, blocks = SelectedBlocks, KEYS // BLOCK_SIZE
        defaults = {"block_size": BLOCK_SIZE, "segment_size": SEGMENT_SIZE}
        defaults |= {"num_blocks": blocks, "num_nodes": blocks}
    known = [field.name for field in options_of(cls) if field.name not in FIXED[kind]]
    unknown = [option for option in options if option not in known]
    if unknown:
        raise ValueError(
            f"--kinds {kind} has the options {', '.join(known)}. Received: {', '.join(unknown)}"
        )
    return cls(**{**defaults, **FIXED[kind], **options})


def line_of(name):
    """The kind without the numbers of what it reads, which a line of a picture goes along.

    >>> line_of("blocks:block_size=8:num_blocks=16")
    'blocks:block_size=8'
    """
    return ":".join(part for part in name.split(":") if not part.startswith("num_"))
