"""Attention of documents that share a row, one document at a time."""

import keras
import tensorflow as tf

from rt_keras.keras_internals import without_autocast
from rt_keras.ops.blocks import move_axis, size, sizes
from rt_keras.ops.documents import count_documents
from rt_keras.ops.left_padding import leading_padding, roll_rows


def check_documents(segment_ids, query, key, global_mask):
    """Raises a ValueError if attention does not support documents that share a row.

    Args:
        segment_ids: `[batch, length]`.
        query, key: `[batch, length, features]`.
        global_mask: mask of global tokens, or None.
    """
    if global_mask is not None:
        raise ValueError("segment_ids cannot be combined with global_mask. Received: both")
    shapes = [tf.TensorShape(x.shape[:2]) for x in (tf.convert_to_tensor(segment_ids), query, key)]
    if not all(shape.is_compatible_with(shapes[0]) for shape in shapes):
        raise ValueError(
            "segment_ids must be [batch, length], with the length of both queries and keys. "
            f"Received: segment_ids of shape {shapes[0]}, queries {shapes[1]}, keys {shapes[2]}"
        )


def attend_to_each(heads, *, documents, query_mask, key_mask, dropout, seed, **arguments):
    """Computes the attention of heads to one document of each row after the other.

    Each document is moved to the start of its row, as if it were alone. This costs as much as a
    row for each document. The gradient computes the attention again.

    Args:
        heads: the head group.
        documents, query_mask, key_mask, dropout, seed: see `HeadGroup`.
        **arguments: the other arguments of `heads.attend`.

    Returns:
        `[batch, heads, length, value_depth]`.
    """
    tensors = {name: x for name, x in arguments.items() if tf.is_tensor(x)}
    weights, state = heads.trainable_variables, heads.non_trainable_variables
    # Each layer inside casts the weights to its own dtype.
    with without_autocast():
        weights_and_state = [tf.convert_to_tensor(x.value) for x in (*weights, *state)]
    values, fixed = weights_and_state[: len(weights)], weights_and_state[len(weights) :]

    def attend(number, inputs):
        here = documents == number
        before = leading_padding(here)
        masks = {"query_mask": query_mask, "key_mask": key_mask}
        for name, mask in masks.items():
            masks[name] = roll_rows(here if mask is None else here & mask, -before)
        if key_mask is None and arguments["key"] is None:
            # Queries that are also keys have one mask.
            masks["key_mask"] = None
        moved = {name: roll_positions(x, -before) for name, x in zip(tensors, inputs)}
        drawn = {"dropout": dropout, "seed": seed}
        if dropout:
            drawn["seed"] = tf.random.experimental.stateless_fold_in(seed, number)
        scope = [*zip(weights, inputs[len(tensors) :]), *zip(state, fixed)]
        with keras.StatelessScope(scope):
            output = heads.attend(**{**arguments, **moved}, **masks, **drawn)
        output = roll_positions(output, before)
        return tf.where(here[:, None, :, None], output, tf.zeros([], output.dtype))

    query, value = arguments["query"], arguments["value"]
    nothing = tf.zeros([*sizes(query)[:3], size(value, 3)], value.dtype)
    return _sum_over(count_documents(documents), attend, nothing, [*tensors.values(), *values])


def _sum_over(count, function, first, inputs):
    """Returns `first + sum_(number < count) function(number, inputs)`, with a gradient for inputs.

    The gradient computes the function again. TensorFlow's own needs a bound of `count` in XLA.
    """

    @tf.custom_gradient
    def total(*inputs):
        def add(number, output):
            output += function(number, inputs)
            return number + 1, tf.ensure_shape(output, first.shape)

        def gradients(upstream):
            def add_gradients(number, *totals):
                with tf.GradientTape() as tape:
                    tape.watch(inputs)
                    output = function(number, inputs)
                found = tape.gradient(output, inputs, upstream, unconnected_gradients="zero")
                return number + 1, *(x + tf.cast(y, x.dtype) for x, y in zip(totals, found))

            start = [tf.constant(0), *map(tf.zeros_like, inputs)]
            return tf.while_loop(lambda number, *_: number < count, add_gradients, start)[1:]

        start = [tf.constant(0), first]
        return tf.while_loop(lambda number, _: number < count, add, start)[1], gradients

    return total(*inputs)


def roll_positions(x, shift):
    """Moves the positions of `[batch, heads, length, ...]` as `roll_rows` moves those of rows."""
    return move_axis(roll_rows(move_axis(x, 2, 1), shift), 1, 2)
