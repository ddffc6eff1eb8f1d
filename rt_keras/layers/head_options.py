"""Checks of the options of heads, and errors that name the kind of heads."""

import functools
import inspect


def naming_the_kind(init):
    """Wraps a constructor so that its errors name the kind of heads."""

    @functools.wraps(init)
    def wrapped(self, *args, **kwargs):
        try:
            init(self, *args, **kwargs)
        except ValueError as error:
            kind = type(self).__name__
            if kind in str(error):
                raise
            raise ValueError(f"{kind}: {error}") from error

    # Keras inspects the wrapper, not the wrapped function.
    wrapped.__signature__ = inspect.signature(init)
    return wrapped


def positive_int(name, value):
    """Returns `value`, or raises a ValueError if it is not a positive integer."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a positive integer. Received: {name}={value!r}")
    return value


def positive_int_or_none(name, value):
    """Returns `value`, or raises a ValueError if it is neither None nor a positive integer."""
    return None if value is None else positive_int(name, value)
