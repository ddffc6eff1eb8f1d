"""Attention of documents that share a row, one document at a time."""

import keras
import tensorflow as tf

from rt_keras.keras_internals import without_autocast
from rt_keras.ops.attend import MASKED, accumulation_dtype
from rt_keras.ops.blocks import move_axis, size, sizes
from rt_keras.ops.documents import count_documents, number_long_documents
from rt_keras.ops.left_padding import leading_padding, roll_rows

# The fields of `AttentionInputs` with a row for each position.
VECTORS = ("query", "key", "value", "gates")


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


def attend_to_each(heads, attend, inputs, join=False, furthest=None):
    """Computes attention to one document of each row after the other.

    Each document is moved to the start of its row, as if it were alone. This costs as much as a
    row for each document. The gradient computes the attention again.

    Args:
        heads: the head group, which owns all weights.
        attend: function of `AttentionInputs` and `join`.
        inputs: `AttentionInputs` with `documents`; see `rt_keras.ops.documents.number_documents`.
        join: bool, whether `attend` returns a pair with the logsumexp of the logits. Defaults to
            False.
        furthest: int, largest distance of the keys that are left out; or None. Queries of shorter
            documents, which are left out too, see no key. Defaults to None.

    Returns:
        `[batch, heads, length, value_depth]`, and with `join` also `[batch, heads, length]`.
    """
    documents, inputs = inputs.documents, inputs._replace(documents=None)
    if furthest is not None:
        documents = number_long_documents(documents, furthest + 1)
    names = [x for x in VECTORS if getattr(inputs, x) is not None]
    weights, state = heads.trainable_variables, heads.non_trainable_variables
    # Each layer inside casts the weights to its own dtype.
    with without_autocast():
        values = [tf.convert_to_tensor(x.value) for x in weights]
        fixed = [tf.convert_to_tensor(x.value) for x in state]

    def attend_to_document(number, tensors):
        here = documents == number
        before = leading_padding(here)
        vectors = [roll_positions(x, -before) for x in tensors[: len(names)]]
        moved = _at_the_start(inputs, here, before, number)
        moved = moved._replace(**dict(zip(names, vectors, strict=True)))
        with keras.StatelessScope([*zip(weights, tensors[len(names) :]), *zip(state, fixed)]):
            results = attend(moved, join)
        return tf.nest.map_structure(
            lambda x: _where(here, roll_positions(x, before), 0), results if join else (results,)
        )

    query, value = inputs.query, inputs.value
    first = (tf.zeros([*sizes(query)[:3], size(value, 3)], value.dtype),)
    if join:
        nothing = tf.zeros(sizes(query)[:3], accumulation_dtype(query.dtype))
        first = *first, _where(documents >= 0, nothing, MASKED)
    tensors = [*(getattr(inputs, x) for x in names), *values]
    results = _sum_over(count_documents(documents), attend_to_document, first, tensors)
    return results if join else results[0]


def _at_the_start(inputs, here, before, number):
    """Returns the masks and the seed of one document that begins its row."""
    query_mask, key_mask = (
        roll_rows(here if mask is None else here & mask, -before)
        for mask in (inputs.query_mask, inputs.key_mask)
    )
    if inputs.key_mask is None and inputs.key is None:
        # Queries that are also keys have one mask.
        key_mask = None
    seed = inputs.seed
    if inputs.dropout:
        seed = tf.random.experimental.stateless_fold_in(seed, number)
    return inputs._replace(query_mask=query_mask, key_mask=key_mask, seed=seed)


def _sum_over(count, function, first, inputs):
    """Returns `first + sum_(number < count) function(number, inputs)`, with a gradient for inputs.

    The gradient computes the function again. TensorFlow's own needs a bound of `count` in XLA.

    Args:
        count: int scalar.
        function: function of a number and a tuple of tensors. It returns a tuple like `first`.
        first: tuple of tensors.
        inputs: list of tensors.
    """

    @tf.custom_gradient
    def total(*inputs):
        def add(number, *sums):
            terms = function(number, inputs)
            return number + 1, *(tf.ensure_shape(x + y, x.shape) for x, y in zip(sums, terms))

        def gradients(*upstream):
            def add_gradients(number, *sums):
                with tf.GradientTape() as tape:
                    tape.watch(inputs)
                    outputs = function(number, inputs)
                terms = tape.gradient(outputs, inputs, upstream, unconnected_gradients="zero")
                return number + 1, *(x + tf.cast(y, x.dtype) for x, y in zip(sums, terms))

            start = tf.constant(0), *map(tf.zeros_like, inputs)
            return tf.while_loop(lambda number, *_: number < count, add_gradients, start)[1:]

        start = tf.constant(0), *first
        return tf.while_loop(lambda number, *_: number < count, add, start)[1:], gradients

    return total(*inputs)


def roll_positions(x, shift):
    """Moves the positions of `[batch, heads, length, ...]` as `roll_rows` moves those of rows."""
    return move_axis(roll_rows(move_axis(x, 2, 1), shift), 1, 2)


def _where(mask, x, other):
    """Returns `[batch, heads, length, ...]` where `[batch, length]` is True, else a number."""
    mask = tf.reshape(mask, [size(mask, 0), 1, size(mask, 1), *[1] * (x.shape.rank - 3)])
    return tf.where(mask, x, tf.constant(other, x.dtype))
