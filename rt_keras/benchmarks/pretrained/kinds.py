"""The kinds of heads that replace full attention in a pretrained model.

A kind is a name, with options of its set of keys after colons: `oracle:num_keys=64`. All kinds that
read a number of distant keys have the same window, and in decoders also the first tokens.
"""

from rt_keras import config_files

# Number of groups of clustered attention.
ENCODER_CLUSTERS = 25
# Number of keys that a query of an encoder sees, including its window, where it can be chosen. They
# are best spent on a small window and small blocks.
ENCODER_KEYS = 64
ENCODER_WINDOW, ENCODER_BLOCK_SIZE = 4, 2
_CHOSEN = {
    "random": "also random keys",
    "oracle": "also the keys with the largest logits",
    "blocks": "also the blocks of neighboring keys with the best scores",
    "content_blocks": "also the blocks of similar keys with the best scores",
}
# The clustered kinds of encoders, and the options that only they have.
_CLUSTERED = {"clustered": {}, "improved_clustered": {"top_k": ENCODER_KEYS}}
MEANINGS = {
    "keras_hub": "the model as KerasHub computes it",
    "full": "every key, in blocks",
    "full_scaled": "every key, with rotary positions scaled to the trained length",
    "window": "a window",
    "window_first": "a window and the first tokens",
    **_CHOSEN,
}
ENCODER_MEANINGS = {
    "full": "every key",
    "window": "a window of as many keys as other kinds see",
    **_CHOSEN,
    "clustered": "the keys as the mean of the query's group sees them",
    "improved_clustered": "also the query's own weights for the group's best keys",
}


def meanings(causal):
    """Returns a dictionary of the kinds for decoders or encoders, and the keys that each sees."""
    return MEANINGS if causal else ENCODER_MEANINGS


def head_groups(name, heads, causal=True, few=False):
    """Returns the heads of a layer.

    Args:
        name: string, a kind and its options.
        heads: int, number of heads.
        causal: bool, whether they belong to a decoder. Defaults to True.
        few: bool, whether few layers of a decoder look far, see `few_look_far`. Defaults to False.

    Returns:
        A list of one head group; None for the model as KerasHub computes it.

    Raises:
        ValueError: if the kind does not exist or does not have these options.

    >>> head_groups("oracle:num_keys=64", 2)[0].key_sets[2]
    ChosenKeys(num_keys=64)
    """
    from rt_keras.layers import FullHeads, Heads
    from rt_keras.layers.key_sets import Window
    from rt_keras.models.adapted.default_heads import sets_beside

    kind, *assignments = name.split(":")
    if kind not in meanings(causal):
        raise ValueError(f"--kinds must be among {', '.join(meanings(causal))}. Received: {name}")
    options = dict(map(config_files.parse_assignment, assignments))
    # The first tokens have the distance of the blocks.
    distance = options.get("rotary_distance")
    beside = sets_beside(few, distance) if causal else [Window(ENCODER_WINDOW)]
    if kind in _CHOSEN:
        return [Heads(heads, [*beside, _key_set(kind, options, causal, few)])]
    if not causal and kind in _CLUSTERED:
        return [_clustered(kind, heads, options)]
    if options:
        raise ValueError(f"--kinds {kind} has no options. Received: {name}")
    if not causal:
        half = ENCODER_KEYS // 2
        beside = [Window(half, sliding_window=half + 1)]
    return {
        "keras_hub": lambda: None,
        "full": lambda: [FullHeads(heads)],
        "full_scaled": lambda: [FullHeads(heads)],
        "window": lambda: [Heads(heads, beside[:1])],
        "window_first": lambda: [Heads(heads, beside)],
    }[kind]()


def _clustered(kind, heads, options):
    """Returns clustered heads of an encoder."""
    from rt_keras.layers import ClusteredHeads

    defaults = {"num_clusters": ENCODER_CLUSTERS, **_CLUSTERED[kind]}
    _check_options(kind, options, defaults)
    return ClusteredHeads(heads, **{**defaults, **options}, seed=0)


def _key_set(kind, options, causal, few=False):
    """Returns the set of the keys that a kind finds."""
    from rt_keras.benchmarks.pretrained.chosen_keys import ChosenKeys
    from rt_keras.layers.key_sets import SelectedBlocks
    from rt_keras.layers.key_sets.key_set import options_of
    from rt_keras.models.adapted.default_heads import KEYS, block_options

    keys = KEYS
    blocks = block_options(keys, few)
    if not causal:
        # The window is the query's block and one on either side.
        keys = ENCODER_KEYS - 3 * ENCODER_WINDOW
        # In blocks this small, the deviation is noise.
        blocks = {
            "block_size": ENCODER_BLOCK_SIZE,
            "num_blocks": keys // ENCODER_BLOCK_SIZE,
            "segment_size": ENCODER_WINDOW,
            "deviation_weight": 0.0,
        }
    # The class, the arguments that define the kind, and the defaults of its options.
    cls, fixed, defaults = {
        "random": (ChosenKeys, {"at_random": True}, {"num_keys": keys}),
        "oracle": (ChosenKeys, {"at_random": False}, {"num_keys": keys}),
        "blocks": (SelectedBlocks, {"by_content": False}, blocks),
        "content_blocks": (SelectedBlocks, {"by_content": True}, blocks),
    }[kind]
    known = [field.name for field in options_of(cls) if field.name not in fixed]
    _check_options(kind, options, known)
    return cls(**{**defaults, **fixed, **options})


def _check_options(kind, options, known):
    unknown = [option for option in options if option not in known]
    if unknown:
        raise ValueError(
            f"--kinds {kind} has the options {', '.join(known)}. Received: {', '.join(unknown)}"
        )


def line_of(name):
    """Returns a kind without its numbers of keys, which vary along a line of a plot.

    >>> line_of("blocks:block_size=8:num_blocks=16")
    'blocks:block_size=8'
    """
    return ":".join(part for part in name.split(":") if not part.startswith("num_"))
