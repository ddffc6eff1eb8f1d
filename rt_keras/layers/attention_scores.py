"""Attention weights of head groups, computed from outputs, which are linear in the values."""

import tensorflow as tf

from rt_keras.ops.blocks import size


def check_scores(head_groups):
    """Raises a ValueError if a group does not have attention weights for single keys."""
    for group in head_groups:
        if not group.returns_attention_scores:
            raise ValueError(
                f"{group._described()} have no attention weights for single keys, which "
                "return_attention_scores=True and attention maps need."
            )


def outputs_for(values, group, arguments, options):
    """Returns the outputs of a head group for other values.

    Args:
        values: `[keys, width]`, the values of every head and sequence.
        group: a head group.
        arguments: its (query, value, key).
        options: dictionary of the other arguments of its call.

    Returns:
        `[batch, heads, queries, width]`.
    """
    query, value, key = arguments
    shape = [size(value, 0), size(value, 1), size(values, 0), size(values, 1)]
    same = tf.broadcast_to(tf.cast(values, value.dtype), shape)
    # In training, routing heads would count the batch a second time.
    return group(query, same, key, **options, training=False)


def attention_scores(group, arguments, options):
    """Returns the attention weights of a head group, which are its outputs for one-hot values.

    Args:
        group, arguments, options: see `outputs_for`.

    Returns:
        `[batch, heads, queries, keys]`.
    """
    query, value, _ = arguments
    length, width = size(value, 2), value.shape[3]
    if not group.adds_to_values:
        return outputs_for(tf.eye(length), group, arguments, options)
    # Terms added to the values must be subtracted. Since they have the depth of the values, that
    # many keys are computed at a time.
    nothing = outputs_for(tf.zeros([length, width]), group, arguments, options)

    def of_keys(start):
        values = tf.one_hot(tf.range(length) - start, width)
        return outputs_for(values, group, arguments, options) - nothing

    # At least one iteration, so that shapes are known.
    starts = tf.range(0, tf.maximum(length, 1), width)
    signature = tf.TensorSpec([*query.shape[:3], width], value.dtype)
    found = tf.map_fn(of_keys, starts, fn_output_signature=signature)
    found = tf.transpose(found, [1, 2, 3, 0, 4])
    shape = [size(query, 0), group.num_heads, size(query, 2), size(starts, 0) * width]
    return tf.reshape(found, shape)[..., :length]
