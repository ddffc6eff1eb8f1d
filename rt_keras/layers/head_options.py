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


def positive_int(name, value, least=1):
    """Returns `value`, or raises a ValueError if it is not an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        allowed = "a positive integer" if least == 1 else f"an integer of at least {least}"
        raise ValueError(f"{name} must be {allowed}. Received: {name}={value!r}")
    return value


def positive_int_or_none(name, value, least=1):
    """Returns `value`, or raises a ValueError if it is neither None nor such an integer."""
    return None if value is None else positive_int(name, value, least)
