"""Attention weights of head groups, read off their outputs, which are linear in the values."""

import tensorflow as tf

from rt_keras.layers.global_tokens import with_values
from rt_keras.ops.blocks import size


def check_scores(head_groups):
    """Raises a ValueError if a group has no weights for each key."""
    for group in head_groups:
        if not group.returns_attention_scores:
            raise ValueError(
                f"{group._described()} have no attention weights of single keys, which "
                "return_attention_scores=True, WatchHeads and pictures of attention need."
            )


def outputs_for(values, group, arguments, options):
    """The outputs of a group of heads for other values.

    Args:
        values: `[keys, width]`, those of every head and sequence.
        group: a head group.
        arguments: its (query, value, key).
        options: dictionary of the other arguments of its call.

    Returns:
        `[batch, heads, queries, width]`.
    """
    query, value, key = arguments
    shape = [size(value, 0), size(value, 1), size(values, 0), size(values, 1)]
    same = tf.broadcast_to(tf.cast(values, value.dtype), shape)
    # Without training: routing heads would count the batch once more.
    return group(query, same, key, **with_values(options, same), training=False)


def attention_scores(group, arguments, options):
    """The attention weights of a group of heads: its outputs for values that are one-hot.

    Args:
        group, arguments, options: see `outputs_for`.

    Returns:
        `[batch, heads, queries, keys]`.
    """
    query, value, _ = arguments
    length, width = size(value, 2), value.shape[3]
    if not group.adds_to_values:
        return outputs_for(tf.eye(length), group, arguments, options)
    # What is added to the values has their depth, and must not count: as many keys at a time.
    nothing = outputs_for(tf.zeros([length, width]), group, arguments, options)

    def of_keys(start):
        values = tf.one_hot(tf.range(length) - start, width)
        return outputs_for(values, group, arguments, options) - nothing

    # At least once, so that shapes are known.
    starts = tf.range(0, tf.maximum(length, 1), width)
    signature = tf.TensorSpec([*query.shape[:3], width], value.dtype)
    found = tf.map_fn(of_keys, starts, fn_output_signature=signature)
    found = tf.transpose(found, [1, 2, 3, 0, 4])
    shape = [size(query, 0), group.num_heads, size(query, 2), size(starts, 0) * width]
    return tf.reshape(found, shape)[..., :length]
