"""Vectors by head: those of each head group, and constraints of weights by head."""

import typing

import keras
import tensorflow as tf

from rt_keras.layers.attention_calls import GroupCall
from rt_keras.ops.blocks import size


class Vectors(typing.NamedTuple):
    """Queries, keys and values of all heads; None for those that a layer or a call lacks."""

    query: typing.Any
    key: typing.Any
    value: typing.Any


def check_grouped_queries(head_groups, num_key_value_heads):
    """Raises a ValueError if the heads cannot share this number of key/value heads."""
    num_heads = sum(group.num_heads for group in head_groups)
    if num_heads % num_key_value_heads:
        raise ValueError(
            f"num_key_value_heads must divide the {num_heads} heads of head_groups. Received: "
            f"num_key_value_heads={num_key_value_heads}"
        )
    shared_by = num_heads // num_key_value_heads
    shared = (
        f"With num_key_value_heads={num_key_value_heads}, {shared_by} consecutive heads share "
        "their keys"
    )
    for group in head_groups:
        name = group.kind
        if group.num_heads % shared_by:
            raise ValueError(
                f"{shared}, so num_heads of every group must be a multiple of that. Received: "
                f"num_heads={group.num_heads} of {name}"
            )
        if group.share_qk and shared_by > 1:
            raise ValueError(
                f"{shared}. Received: {name} with share_qk=True, whose queries are also keys"
            )


def hand_out(head_groups, heads, gates=None, pair_mask=None):
    """Returns the `GroupCall` of each group, with its heads of vectors, gates and mask.

    Args:
        head_groups: list of head groups.
        heads: `Vectors`, the queries `[batch, heads, queries, key_dim]`, keys and values
            `[batch, key_heads, keys, depth]` of all groups. Groups with `share_qk` have no keys.
        gates: `[batch, queries, gates]` of the groups that have some, or None.
        pair_mask: bool `[batch or 1, heads or 1, queries, keys]`, or None.
    """
    counts = [group.num_heads for group in head_groups]
    shared_by = sum(counts) // heads.value.shape[1]
    shared = [count // shared_by for count in counts]
    with_keys = [0 if group.share_qk else x for group, x in zip(head_groups, shared)]
    units = [x.num_heads * x.num_gates(heads.value.shape[3]) for x in head_groups]
    queries, keys = _parts(heads.query, counts), _parts(heads.key, with_keys)
    values, gates = _parts(heads.value, shared), _parts(gates, units, axis=2)
    masks = [pair_mask] * len(counts)
    if pair_mask is not None and pair_mask.shape[1] > 1:
        masks = _parts(pair_mask, counts)
    calls = []
    for i, group in enumerate(head_groups):
        options = {}
        if gates[i] is not None:
            # [batch, queries, heads * gates] -> [batch, heads, queries, gates]
            options["gates"] = swap_heads(split_heads(gates[i], group.num_heads))
        if masks[i] is not None:
            options["attention_mask"] = masks[i]
        calls.append(GroupCall(group, (queries[i], values[i], keys[i]), options))
    return calls


def _parts(x, counts, axis=1):
    """Cuts an axis into parts of these sizes; None for a size of 0."""
    parts, first = [None] * len(counts), 0
    for i, count in enumerate(counts):
        if x is not None and count == x.shape[axis]:
            # All of it, without an operation.
            parts[i] = x
        elif x is not None and count:
            parts[i] = x[(slice(None),) * axis + (slice(first, first + count),)]
        first += count
    return parts


def split_heads(x, heads):
    """Reshapes `[batch, length, heads * depth]` to `[batch, length, heads, depth]`."""
    return tf.reshape(x, [size(x, 0), size(x, 1), heads, x.shape[-1] // heads])


def swap_heads(x):
    """Swaps the axes of heads and length in `[batch, heads, length, depth]`."""
    return tf.transpose(x, [0, 2, 1, 3])


def fold_beams(x, batch):
    """Reshapes `[batch * beams, heads, 1, depth]` to `[batch, heads, beams, depth]`."""
    return swap_heads(tf.reshape(x, [batch, size(x, 0) // batch, x.shape[1], x.shape[3]]))


def unfold_beams(x):
    """Reshapes `[batch, heads, beams, depth]` to `[batch * beams, heads, 1, depth]`."""
    return tf.reshape(swap_heads(x), [size(x, 0) * size(x, 2), x.shape[1], 1, x.shape[3]])


def constraint_by_head(constraint, shape):
    """Returns the `HeadConstraint` of a constraint, or None for None."""
    return None if constraint is None else HeadConstraint(constraint, shape)


class HeadConstraint(keras.constraints.Constraint):
    """Applies a constraint to weights after splitting the axes of heads and depth.

    The dense layers of attention here store `[features, heads * depth]`. Those of
    `keras.layers.MultiHeadAttention` store `[features, heads, depth]`, and the axes of a constraint
    refer to that shape.

    Args:
        constraint: `keras.constraints.Constraint`.
        shape: tuple of ints, the shape to which the constraint applies. One entry may be -1.

    >>> weights = HeadConstraint(keras.constraints.UnitNorm(axis=0), (2, -1))(keras.ops.ones([6]))
    >>> [round(float(x), 2) for x in weights]
    [0.71, 0.71, 0.71, 0.71, 0.71, 0.71]
    """

    def __init__(self, constraint, shape):
        self.constraint = constraint
        self.shape = shape

    def __call__(self, w):
        return keras.ops.reshape(self.constraint(keras.ops.reshape(w, self.shape)), w.shape)

    def get_config(self):
        return {"constraint": keras.constraints.serialize(self.constraint), "shape": self.shape}

    @classmethod
    def from_config(cls, config):
        return cls(keras.constraints.deserialize(config["constraint"]), tuple(config["shape"]))
