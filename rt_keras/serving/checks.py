"""What is asked of a signature's inputs, as assertions that run with the graph.

A server answers a request that fails one with the message, which starts with the input's name, and
goes on serving.
"""

import tensorflow as tf


def checked(name, value, rank, conditions=()):
    """An input that nothing is computed from before its conditions are known to hold.

    Args:
        name: the input's name in the signature.
        value: tensor.
        rank: the rank it must have.
        conditions: list of functions of the tensor that give pairs of a bool tensor, true where
            all is well, and what to say else.

    Returns:
        `value`.

    >>> positive = lambda x: (x > 0, "it must be above 0")
    >>> int(checked("size", tf.constant(3), rank=0, conditions=[positive]))
    3
    >>> checked("size", tf.constant(-3), rank=0, conditions=[positive])
    Traceback (most recent call last):
    ...
    tensorflow...InvalidArgumentError: ...size: it must be above 0...-3...
    """
    # A server feeds whatever shape it was sent. An error of this operation has its name.
    value = tf.ensure_shape(value, [None] * rank, name=f"{name}_must_have_rank_{rank}")
    for condition in conditions:
        holds, message = condition(value)
        # Strings that are no UTF-8 would make the message of an error unreadable.
        shown = tf.where(~holds) if value.dtype == tf.string else value
        assertion = tf.debugging.Assert(tf.reduce_all(holds), [f"{name}: {message}", shown])
        with _after(assertion):
            value = tf.identity(value)
    return value


def one_a_row(name, value, batch, condition):
    """A parameter of each row: a scalar stands for all, else there is one for each.

    Args:
        name: the input's name in the signature.
        value: tensor of any shape.
        batch: how many rows there are.
        condition: as in `checked`.

    Returns:
        Tensor `[batch]`.
    """
    shape = tf.shape(value)
    rank = tf.size(shape)
    fits = (rank == 0) | ((rank == 1) & (tf.size(value) == batch))
    message = f"{name}: it must be a scalar or one for each prompt; its shape is"
    assertion = tf.debugging.Assert(fits, [message, shape])
    with _after(assertion):
        value = tf.broadcast_to(value, [batch])
    return checked(name, value, 1, [condition])


def _after(assertion):
    """A scope of what is to run after an assertion; outside of graphs it has run already."""
    return tf.control_dependencies([] if assertion is None else [assertion])


def not_longer(name, lengths, limit):
    """The lengths, once none is known to be above the limit.

    Args:
        name: the input's name in the signature.
        lengths: int `[batch]`, in tokens.
        limit: int.

    Returns:
        `lengths`.
    """

    def condition(lengths):
        return lengths <= limit, f"it may have {limit} tokens, and has"

    return checked(name, lengths, 1, [condition])


def valid_utf8(texts):
    """Condition that strings are UTF-8."""
    read = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
    return read == texts, "it must be valid UTF-8, and is not at"


def known_tokens(vocabulary_size):
    """Condition that ids stand for tokens."""

    def condition(ids):
        return (ids >= 0) & (ids < vocabulary_size), f"ids must be from 0 to {vocabulary_size - 1}"

    return condition


def above_zero(value):
    """Condition that numbers are above 0 and finite."""
    message = "it must be above 0 and finite"
    if value.dtype.is_floating:
        return (value > 0) & tf.math.is_finite(value), message
    return value > 0, "it must be above 0"


def at_least_zero(value):
    """Condition that numbers are not negative."""
    return value >= 0, "it must not be negative"


def share(value):
    """Condition that numbers are above 0 and at most 1."""
    return (value > 0) & (value <= 1), "it must be above 0 and at most 1"


def anything(value):
    """The condition that always holds."""
    return tf.constant(True), ""
