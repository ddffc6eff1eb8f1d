"""Checks of arguments: the allowed values of numbers and names, and the errors about others."""

import inspect
from collections.abc import Callable
from typing import NamedTuple


class Allowed(NamedTuple):
    """The allowed values of an argument or of a key of a configuration.

    Attributes:
        text: string, the description for messages: "it must be {text}".
        holds: function that returns whether a value of the correct type is allowed.
    """

    text: str
    holds: Callable[[object], bool] = lambda value: True


AT_LEAST_0 = Allowed("an integer of at least 0", lambda value: value >= 0)
AT_LEAST_1 = Allowed("an integer of at least 1", lambda value: value >= 1)
POSITIVE = Allowed("a number above 0", lambda value: 0 < value < float("inf"))
NOT_NEGATIVE = Allowed("a number of at least 0", lambda value: 0 <= value < float("inf"))
SHARE = Allowed("a number from 0 to 1", lambda value: 0 <= value <= 1)
SHARE_BELOW_1 = Allowed("at least 0 and below 1", lambda value: 0 <= value < 1)


def one_of(*names):
    """Allows only the given strings."""
    return Allowed(f"one of {', '.join(names)}", lambda value: value in names)


def check(name, value, allowed):
    """Raises a ValueError if the value of an argument is not allowed.

    Args:
        name: string, name of the argument.
        value: the value of the argument, of the correct type.
        allowed: an `Allowed`.

    >>> check("dropout", 1.5, SHARE_BELOW_1)
    Traceback (most recent call last):
    ...
    ValueError: dropout must be at least 0 and below 1. Received: dropout=1.5
    """
    if not allowed.holds(value):
        raise wrong_value(name, allowed.text, value)


def wrong_value(name, needed, value):
    """Returns the error for the value of an argument, given in words what it must be."""
    return ValueError(f"{name} must be {needed}. Received: {name}={value!r}")


def defaults_of(function):
    """Returns a dictionary from the names of a function's arguments to their default values.

    Args:
        function: function, or class for the arguments of its constructor. Arguments without a
            default have `inspect.Parameter.empty`.

    >>> defaults_of(lambda length, causal=False: None)["causal"]
    False
    """
    parameters = inspect.signature(function).parameters
    return {name: parameter.default for name, parameter in parameters.items()}
