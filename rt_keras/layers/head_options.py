"""Checks of the options of heads, and refusals that say whose they are."""

import functools
import inspect


def naming_the_kind(init):
    """A constructor whose refusals name the kind of heads, of which a model may have many."""

    @functools.wraps(init)
    def wrapped(self, *args, **kwargs):
        try:
            init(self, *args, **kwargs)
        except ValueError as error:
            kind = type(self).__name__
            if kind in str(error):
                raise
            raise ValueError(f"{kind}: {error}") from error

    # Keras reads it off the function itself, not off the one that is wrapped.
    wrapped.__signature__ = inspect.signature(init)
    return wrapped


def positive_int(name, value):
    """Returns `value`, or raises the error that says what is allowed."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a positive integer. Received: {name}={value!r}")
    return value


def positive_int_or_none(name, value):
    """Returns `value`, or raises the error that says what is allowed."""
    return None if value is None else positive_int(name, value)
