"""Creation and serialization of a backbone's blocks."""

import keras

from rt_keras.layers import TransformerBlock
from rt_keras.layers.head_group import copy_groups
from rt_keras.layers.multi_head_attention import are_head_groups
from rt_keras.layers.normalization import make_normalization
from rt_keras.layers.transformer_block import BLOCK_OPTIONS

# Options that may be lists with one number per block.
PER_BLOCK = ("product_keys", "conv_kernel_size")


def take_block_options(kwargs):
    """Removes `BLOCK_OPTIONS` from a backbone's keyword arguments.

    Args:
        kwargs: dictionary, from which these keys are removed.

    Returns:
        Dictionary of all `BLOCK_OPTIONS`, with defaults for missing ones.
    """
    return {name: kwargs.pop(name, default) for name, default in BLOCK_OPTIONS.items()}


def make_blocks(all_groups, intermediate_dim, options, dtype, name, all_cross_groups=None):
    """Creates the blocks of a backbone with copies of the head groups.

    Args:
        all_groups: list of lists, the head groups of each block.
        intermediate_dim: int, width of the feed-forward networks.
        options: dictionary of all `BLOCK_OPTIONS`.
        dtype: dtype policy.
        name: string, prefix of the blocks' names.
        all_cross_groups: list of lists, the cross-attention head groups of each block. Defaults to
            None, for no cross-attention.

    Returns:
        A list of `TransformerBlock`.

    Raises:
        ValueError: if `product_keys` or `conv_kernel_size` is a list without exactly one number per
            block.
    """
    count = len(all_groups)
    all_cross_groups = all_cross_groups or [None] * count
    of_blocks = {name: _one_per_block(name, options[name], count) for name in PER_BLOCK}
    return [
        TransformerBlock(
            copy_groups(groups, dtype),
            intermediate_dim,
            cross_head_groups=cross and copy_groups(cross, dtype),
            dtype=dtype,
            name=f"{name}_{i}",
            **{**options, **{option: values[i] for option, values in of_blocks.items()}},
        )
        for i, (groups, cross) in enumerate(zip(all_groups, all_cross_groups))
    ]


def _one_per_block(name, value, count):
    """Returns the value of an option in each block."""
    values = list(value) if isinstance(value, (list, tuple)) else [value] * count
    if len(values) != count:
        raise ValueError(
            f"{name} must be one number, or a list of one number for each of the {count} blocks. "
            f"Received: {len(values)} numbers"
        )
    return values


def make_final_norm(options, dtype, name):
    """Creates the normalization layer after the last block.

    Args:
        options: dictionary of all `BLOCK_OPTIONS`.
        dtype: dtype policy.
        name: string, name of the layer.

    Returns:
        A layer, or None if blocks are post-norm or do not normalize.
    """
    kind = options["normalization"]
    if not options["normalize_first"] or kind == "rezero":
        return None
    return make_normalization(kind, options["layer_norm_epsilon"], dtype, name)


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
    return {**options, "kernel_initializer": keras.initializers.serialize(initializer)}


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
