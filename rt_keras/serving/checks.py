"""Checks of a signature's inputs, as assertions in the graph.

A request that fails a check gets its message, which starts with the name of the input. The server
keeps running.
"""

import tensorflow as tf

from rt_keras.models.generation import LOWEST_TEMPERATURE


def checked(name, value, rank, conditions=()):
    """Returns an input that depends on its checks, so that they run first.

    Args:
        name: string, name of the input in the signature.
        value: tensor.
        rank: int, required rank.
        conditions: list of functions that map the tensor to a bool tensor, True for valid values,
            and the message for invalid ones.

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
    # A server passes on any shape that it receives. The error shows this operation's name.
    value = tf.ensure_shape(value, [None] * rank, name=f"{name}_must_have_rank_{rank}")
    for condition in conditions:
        holds, message = condition(value)
        # Invalid UTF-8 would make the message unreadable.
        shown = tf.where(~holds) if value.dtype == tf.string else value
        assertion = tf.debugging.Assert(tf.reduce_all(holds), [f"{name}: {message}", shown])
        with _after(assertion):
            value = tf.identity(value)
    return value


def one_a_row(name, value, batch, *conditions):
    """Broadcasts a parameter, a scalar or one value per row, to all rows.

    Args:
        name: string, name of the input in the signature.
        value: tensor of any shape.
        batch: int tensor, number of rows.
        *conditions: functions as in `checked`.

    Returns:
        Tensor `[batch]`.
    """
    shape = tf.shape(value)
    rank = tf.size(shape)
    fits = (rank == 0) | ((rank == 1) & (tf.size(value) == batch))
    message = f"{name}: it must be a scalar or one for each row; its shape is"
    assertion = tf.debugging.Assert(fits, [message, shape])
    with _after(assertion):
        value = tf.broadcast_to(value, [batch])
    return checked(name, value, 1, conditions)


def as_many_rows(name, value, batch):
    """Checks that a tensor has one row per text.

    Args:
        name: string, name of the input in the signature.
        value: tensor of any shape with at least one dimension.
        batch: int tensor, number of texts.

    Returns:
        `value`.
    """
    rows = tf.shape(value)[0]
    message = f"{name}: it must have a row for each text; texts and rows are"
    with _after(tf.debugging.Assert(rows == batch, [message, batch, rows])):
        return tf.identity(value)


def _after(assertion):
    """Returns a scope whose operations run after an assertion, which may have run eagerly."""
    return tf.control_dependencies([] if assertion is None else [assertion])


def not_longer(name, lengths, limit):
    """Checks that no length exceeds the limit.

    Args:
        name: string, name of the input in the signature.
        lengths: int `[batch]`, in tokens.
        limit: int, maximum length.

    Returns:
        `lengths`.
    """

    def condition(lengths):
        return lengths <= limit, f"it must have at most {limit} tokens, but has"

    return checked(name, lengths, 1, [condition])


def valid_utf8(texts):
    """Condition that strings are valid UTF-8."""
    read = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
    return read == texts, "it must be valid UTF-8, but is not at"


def from_0_to(highest):
    """Condition that numbers are from 0 to `highest`."""

    def condition(value):
        return (value >= 0) & (value <= highest), f"it must be from 0 to {highest}, but is"

    return condition


def above_zero(value):
    """Condition that numbers are above 0."""
    return value > 0, "it must be above 0"


def temperature(value):
    """Condition that numbers are temperatures that samplers accept, as for `generate`."""
    allowed = (value >= LOWEST_TEMPERATURE) & tf.math.is_finite(value)
    return allowed, f"it must be finite and at least {LOWEST_TEMPERATURE}"


def zero_or_temperature(value):
    """Condition that numbers are temperatures, or 0 for the most likely value."""
    allowed, message = temperature(value)
    return allowed | (value == 0), f"{message}, or 0"


def at_least_zero(value):
    """Condition that numbers are not negative."""
    return value >= 0, "it must not be negative"


def share(value):
    """Condition that numbers are above 0 and at most 1."""
    return (value > 0) & (value <= 1), "it must be above 0 and at most 1"


def not_empty(texts):
    """Condition that texts do not consist of whitespace only."""
    return tf.strings.length(tf.strings.strip(texts)) > 0, "it must not be empty, but is at"
