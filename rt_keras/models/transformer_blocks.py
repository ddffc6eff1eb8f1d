"""Creation and serialization of a backbone's blocks."""

import keras

from rt_keras.layers import TransformerBlock
from rt_keras.layers.head_group import copy_groups
from rt_keras.layers.multi_head_attention import are_head_groups
from rt_keras.layers.normalization import make_normalization, own_normalization
from rt_keras.layers.own_layers import own_config, own_feed_forward
from rt_keras.layers.transformer_block import BLOCK_OPTIONS, REPLACED_WITH
from rt_keras.models.emulated_dtypes import warn_if_emulated
from rt_keras.models.shared_blocks import share_equal_blocks

# Defaults of the options that concern only the default feed-forward network.
DEFAULT_FEED_FORWARD = {
    name: BLOCK_OPTIONS.get(name)
    for name, replacing in REPLACED_WITH.items()
    if replacing == "feed_forward"
}


def take_block_options(kwargs):
    """Removes `BLOCK_OPTIONS` from a backbone's keyword arguments.

    Args:
        kwargs: dictionary, from which these keys are removed.

    Returns:
        Dictionary of all `BLOCK_OPTIONS`, with defaults for missing ones, and `OwnLayers` for
        layers and functions of layers.
    """
    options = {name: kwargs.pop(name, default) for name, default in BLOCK_OPTIONS.items()}
    options["feed_forward"] = own_feed_forward(options["feed_forward"])
    options["normalization"] = own_normalization(options["normalization"])
    return options


def make_blocks(all_groups, intermediate_dim, options, dtype, name, all_cross_groups=None):
    """Creates the blocks of a backbone with copies of the head groups.

    Args:
        all_groups: list of lists, the head groups of each block.
        intermediate_dim: int, width of the feed-forward networks, or None.
        options: dictionary returned by `take_block_options`.
        dtype: dtype policy.
        name: string, prefix of the blocks' names.
        all_cross_groups: list of lists, the cross-attention head groups of each block. Defaults to
            None, for no cross-attention.

    Returns:
        A list of `TransformerBlock`.

    Raises:
        ValueError: if `conv_kernel_size` is a list without exactly one number per block, or
            `feed_forward` or `normalization` does not return new layers.
    """
    count = len(all_groups)
    all_cross_groups = all_cross_groups or [None] * count
    sizes = _one_per_block(options["conv_kernel_size"], count)
    blocks = []
    for i, (groups, cross) in enumerate(zip(all_groups, all_cross_groups)):
        own = options["feed_forward"] and options["feed_forward"]("feed_forward", i)
        of_block = {**options, "intermediate_dim": intermediate_dim, "feed_forward": None}
        if own is not None:
            of_block |= {**DEFAULT_FEED_FORWARD, "feed_forward": lambda own=own: own}
        block = TransformerBlock(
            copy_groups(groups, dtype),
            cross_head_groups=cross and copy_groups(cross, dtype),
            dtype=dtype,
            name=f"{name}_{i}",
            **{**of_block, "conv_kernel_size": sizes[i]},
        )
        blocks.append(block)
        warn_if_emulated(block.compute_dtype)
    share_equal_blocks(blocks, ["call", "prefill", "call_with_cache", "call_in_place"])
    return blocks


def _one_per_block(size, count):
    """Returns the `conv_kernel_size` of each block."""
    sizes = list(size) if isinstance(size, (list, tuple)) else [size] * count
    if len(sizes) != count:
        raise ValueError(
            "conv_kernel_size must be one number, or a list of one number for each of the "
            f"{count} blocks. Received: {len(sizes)} numbers"
        )
    return sizes


def make_final_norm(options, dtype, name):
    """Creates the normalization layer after the last block.

    Args:
        options: dictionary returned by `take_block_options`.
        dtype: dtype policy.
        name: string, name of the layer.

    Returns:
        A layer, or None if blocks are post-norm.
    """
    if not options["normalize_first"]:
        return None
    epsilon = options["layer_norm_epsilon"]
    return make_normalization(options["normalization"], epsilon, dtype, name)


def groups_of_blocks(head_groups, num_layers, name="head_groups"):
    """Returns the head groups of each block.

    Args:
        head_groups: list of head groups for all blocks, or a list of such lists, one per block.
        num_layers: int, number of blocks.
        name: string, name of the argument in error messages. Defaults to `"head_groups"`.

    Returns:
        List of lists of head groups.

    Raises:
        ValueError: if a block has no head groups, or the number of lists is not `num_layers`.
    """
    lists = (list, tuple)
    nested = isinstance(head_groups, lists) and any(isinstance(x, lists) for x in head_groups)
    all_groups = list(head_groups) if nested else [head_groups] * num_layers
    if len(all_groups) != num_layers:
        raise ValueError(
            f"{name} must be one list of head groups, or one for each of the {num_layers} blocks. "
            f"Received: {len(all_groups)} lists"
        )
    if not all(are_head_groups(groups) for groups in all_groups):
        raise ValueError(
            f"{name} must be a list of at least one head group, such as LocalHeads, or one such "
            f"list for each block. Received: {name}={head_groups!r}"
        )
    return all_groups


def config_of_options(options):
    """Serializes all `BLOCK_OPTIONS` for `get_config`."""
    initializer = keras.initializers.get(options["kernel_initializer"])
    return {
        **options,
        "kernel_initializer": keras.initializers.serialize(initializer),
        "feed_forward": own_config(options["feed_forward"]),
        "normalization": own_config(options["normalization"]),
    }


def config_of_groups(blocks, attention="attention"):
    """Serializes the head groups of each block for `get_config`.

    Args:
        blocks: list of `TransformerBlock`.
        attention: string, attribute of the blocks that holds them, `"attention"` or
            `"cross_attention"`. Defaults to `"attention"`.
    """
    serialize = keras.saving.serialize_keras_object
    return [[serialize(x) for x in getattr(block, attention).head_groups] for block in blocks]


def groups_of_config(config, names=("head_groups",)):
    """Deserializes the head groups of a config for `from_config`.

    Args:
        config: dictionary from `get_config`.
        names: names of the arguments that are head groups. Defaults to `("head_groups",)`.
    """
    deserialize = keras.saving.deserialize_keras_object
    groups = {name: [[deserialize(x) for x in groups] for groups in config[name]] for name in names}
    return {**config, **groups}
