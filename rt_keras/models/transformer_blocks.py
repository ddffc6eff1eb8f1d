"""The blocks of a backbone: their options, and their creation."""

import dataclasses
import typing

import keras

from rt_keras.layers.block_layers import (
    FEED_FORWARD_OPTIONS,
    NORMALIZATION_OPTIONS,
    LayerMaker,
    configs_of,
    feed_forward_maker,
    make_normalization,
    normalization_maker,
)
from rt_keras.layers.head_group import copy_groups
from rt_keras.layers.multi_head_attention import are_head_groups
from rt_keras.layers.transformer_block import TransformerBlock
from rt_keras.models.emulated_dtypes import warn_if_emulated
from rt_keras.models.shared_blocks import share_equal_blocks


@dataclasses.dataclass
class BlockOptions:
    """The options of all blocks of a backbone; see `rt_keras.layers.TransformerBlock`.

    `conv_kernel_size` may be a list of one number per block.
    """

    intermediate_dim: int | None
    key_dim: int | None = None
    value_dim: int | None = None
    activation: typing.Any = "geglu"
    normalize_first: bool = True
    feed_forward: typing.Any = None
    normalization: typing.Any = "layer_norm"
    dropout: float = 0.0
    attention_dropout: float | None = None
    activation_dropout: float | None = None
    shift_tokens: bool = False
    attention_bias: bool = True
    feed_forward_bias: bool = True
    use_head_dense: bool = False
    layer_norm_epsilon: float = 1e-6
    kernel_initializer: typing.Any = "glorot_uniform"
    conv_kernel_size: int | list | None = None
    remat: bool = False

    def __post_init__(self):
        self.feed_forward = feed_forward_maker(self.feed_forward)
        self.normalization = normalization_maker(self.normalization)

    def refuse_unused(self):
        """Raises a ValueError if an option concerns only layers that are replaced in all blocks."""
        if self.feed_forward is not None:
            self.feed_forward.refuse_unused(self, FEED_FORWARD_OPTIONS)
        if isinstance(self.normalization, LayerMaker):
            self.normalization.refuse_unused(self, NORMALIZATION_OPTIONS)

    def get_config(self):
        """Returns the options as arguments of a backbone, for its `get_config`."""
        initializer = keras.initializers.get(self.kernel_initializer)
        config = {**vars(self), "kernel_initializer": keras.initializers.serialize(initializer)}
        for name in ("feed_forward", "normalization"):
            if isinstance(config[name], LayerMaker):
                config[name] = configs_of(config[name].layers)
        return config


def make_blocks(options, head_groups, dtype, name, cross_head_groups=None):
    """Creates the blocks of a backbone.

    Args:
        options: `BlockOptions`.
        head_groups: list of lists, the head groups of each block, which gets copies.
        dtype: dtype policy.
        name: string, prefix of the blocks' names.
        cross_head_groups: list of lists, the cross-attention head groups of each block. Defaults to
            None, for no cross-attention.

    Returns:
        A list of `TransformerBlock`.

    Raises:
        ValueError: if `conv_kernel_size` is a list without exactly one number per block, or
            `feed_forward` or `normalization` does not return new layers.
    """
    count, sizes = len(head_groups), options.conv_kernel_size
    sizes = list(sizes) if isinstance(sizes, (list, tuple)) else [sizes] * count
    if len(sizes) != count:
        raise ValueError(
            "conv_kernel_size must be one number, or a list of one number for each of the "
            f"{count} blocks. Received: {len(sizes)} numbers"
        )
    blocks = []
    for i in range(count):
        cross = cross_head_groups and copy_groups(cross_head_groups[i], dtype)
        changes = {"feed_forward": None, "conv_kernel_size": sizes[i]}
        feed_forward = options.feed_forward and options.feed_forward("feed_forward", i)
        if feed_forward is not None:
            # This block has none of the options of the package's network.
            changes |= {**FEED_FORWARD_OPTIONS, "feed_forward": lambda layer=feed_forward: layer}
        block = TransformerBlock(
            copy_groups(head_groups[i], dtype),
            cross_head_groups=cross,
            dtype=dtype,
            name=f"{name}_{i}",
            **{**vars(options), **changes},
        )
        warn_if_emulated(block.compute_dtype)
        blocks.append(block)
    share_equal_blocks(blocks, ["call", "prefill", "call_with_cache", "call_in_place"])
    return blocks


def make_final_norm(options, dtype, name):
    """Returns the normalization layer after the last block, or None if blocks are post-norm."""
    if not options.normalize_first:
        return None
    return make_normalization(options.normalization, options.layer_norm_epsilon, dtype, name)


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
