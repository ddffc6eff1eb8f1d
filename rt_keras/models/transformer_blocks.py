"""The blocks of a backbone: how they are made of its arguments, and saved with its config."""

import keras

from rt_keras.layers import TransformerBlock
from rt_keras.layers.head_group import HeadGroup, copy_groups
from rt_keras.layers.transformer_block import BLOCK_OPTIONS


def take_block_options(kwargs):
    """The options of the blocks, taken out of a backbone's keyword arguments."""
    return {name: kwargs.pop(name, default) for name, default in BLOCK_OPTIONS.items()}


def make_blocks(all_groups, intermediate_dim, options, dtype, name, all_cross_groups=None):
    """Blocks with head groups like those given.

    Args:
        all_groups: for each block the list of its head groups.
        intermediate_dim: width of the feed-forward networks.
        options: values for all of `BLOCK_OPTIONS`.
        dtype: dtype policy.
        name: of the blocks, before their numbers.
        all_cross_groups: the same for attention to an encoder, or None.

    Returns:
        A list of `TransformerBlock`.
    """
    all_cross_groups = all_cross_groups or [None] * len(all_groups)
    return [
        TransformerBlock(
            copy_groups(groups, dtype),
            intermediate_dim,
            cross_head_groups=cross and copy_groups(cross, dtype),
            dtype=dtype,
            name=f"{name}_{i}",
            **options,
        )
        for i, (groups, cross) in enumerate(zip(all_groups, all_cross_groups))
    ]


def make_final_norm(options, dtype, name):
    """The layer normalisation behind the last block, which pre-norm asks for; else None."""
    if not options["normalize_first"]:
        return None
    return keras.layers.LayerNormalization(
        epsilon=options["layer_norm_epsilon"], dtype=dtype, name=name
    )


def new_caches(blocks, batch, max_length):
    """The cache of no positions yet: that of each block, in a tuple."""
    return tuple(block.new_cache(batch, max_length) for block in blocks)


def prefill_blocks(blocks, x, *args, cross_caches=None, **kwargs):
    """The last of some blocks' outputs for a first stretch of positions, and all their caches.

    Args:
        blocks: `TransformerBlock`s, one after the other.
        x: `[batch, length, width]`.
        cross_caches: for each block the keys and values of the encoder, or None.
        *args, **kwargs: those of `TransformerBlock.prefill`.
    """
    caches = []
    for block, cross_cache in zip(blocks, cross_caches or [None] * len(blocks)):
        x, cache = block.prefill(x, *args, cross_cache=cross_cache, **kwargs)
        caches.append(cache)
    return x, tuple(caches)


def call_blocks_with_cache(blocks, x, caches, *args, cross_caches=None, **kwargs):
    """The last of some blocks' outputs for one position, and all their caches.

    Args:
        blocks: `TransformerBlock`s, one after the other.
        x: `[batch, 1, width]`.
        caches: of the blocks, in a tuple.
        cross_caches: for each block the keys and values of the encoder, or None.
        *args, **kwargs: those of `TransformerBlock.call_with_cache`.

    Raises:
        ValueError: if there are not as many caches as blocks.
    """
    if len(caches) != len(blocks):
        raise ValueError(f"The cache is of {len(caches)} blocks; the model has {len(blocks)}.")
    changed = []
    for block, cache, cross_cache in zip(blocks, caches, cross_caches or [None] * len(blocks)):
        x, cache = block.call_with_cache(x, cache, *args, cross_cache=cross_cache, **kwargs)
        changed.append(cache)
    return x, tuple(changed)


def groups_of_blocks(head_groups, num_layers):
    """The head groups of each block.

    Args:
        head_groups: one list for all blocks, or one for each.
        num_layers: number of blocks.

    Raises:
        ValueError: if there is a block without head groups, or not one list for each block.
    """
    lists = (list, tuple)
    nested = isinstance(head_groups, lists) and any(isinstance(x, lists) for x in head_groups)
    all_groups = list(head_groups) if nested else [head_groups] * num_layers
    if len(all_groups) != num_layers:
        raise ValueError(
            "head_groups must be one list of groups, or one for each of the "
            f"num_layers={num_layers} blocks. Received: {len(all_groups)} lists."
        )
    if not all(_are_head_groups(groups) for groups in all_groups):
        raise ValueError(
            "head_groups must be a list of at least one LocalHeads, RoutingHeads or FullHeads, or "
            f"such a list for each block. Received: head_groups={head_groups!r}"
        )
    return all_groups


def _are_head_groups(x):
    return isinstance(x, (list, tuple)) and x and all(isinstance(y, HeadGroup) for y in x)


def config_of_options(options):
    """The options of blocks as a config holds them."""
    initializer = keras.initializers.get(options["kernel_initializer"])
    return {**options, "kernel_initializer": keras.initializers.serialize(initializer)}


def config_of_groups(blocks, attention="attention"):
    """The head groups of blocks as a config holds them; `attention` names the blocks' layer."""
    serialize = keras.saving.serialize_keras_object
    return [[serialize(x) for x in getattr(block, attention).head_groups] for block in blocks]


def groups_of_config(config, names=("head_groups",)):
    """A config whose head groups, under these names, are objects again."""
    deserialize = keras.saving.deserialize_keras_object
    groups = {name: [[deserialize(x) for x in groups] for groups in config[name]] for name in names}
    return {**config, **groups}
