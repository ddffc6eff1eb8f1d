"""The kinds of heads of `rt-keras benchmark pretrained`."""

from rt_keras.training import config_files

KINDS = {
    "keras_hub": "the model as KerasHub computes it",
    "full": "every key, in blocks",
    "window": "a window",
    "window_first": "a window and the first tokens",
    "blocks": "also the blocks of neighboring keys with the best scores",
    "content_blocks": "also the blocks of similar keys with the best scores",
}
WITH_BLOCKS = ("blocks", "content_blocks")


def parse(name):
    """Returns the kind in a name, and the options of its blocks.

    Args:
        name: string, a kind and its options after colons, such as "blocks:block_size=8".

    Returns:
        Tuple of a string and a dictionary.

    Raises:
        ValueError: if the kind does not exist or does not have these options.

    >>> parse("blocks:block_size=8")
    ('blocks', {'block_size': 8})
    """
    from rt_keras.layers.key_sets.key_set import OF_LAYERS
    from rt_keras.layers.key_sets.selected_blocks import SelectedBlocks

    kind, *assignments = name.split(":")
    if kind not in KINDS:
        raise ValueError(f"--kinds must be among {', '.join(KINDS)}. Received: {name}")
    options, known = dict(map(config_files.parse_assignment, assignments)), []
    if kind in WITH_BLOCKS:
        config = SelectedBlocks(block_size=1, num_blocks=1).get_config()
        known = [name for name in config if name not in (*OF_LAYERS, "by_content")]
    for option in options.keys() - set(known):
        known = ", ".join(known) or "none"
        raise ValueError(f"--kinds {kind} has the options {known}. Received: {option}")
    return kind, options
