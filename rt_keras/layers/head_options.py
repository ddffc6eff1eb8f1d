"""Checks of the options of heads and of sets of keys."""

import math

from rt_keras.arguments import wrong_value


def positive_int(name, value, least=1):
    """Returns `value`, or raises a ValueError if it is not an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        allowed = "a positive integer" if least == 1 else f"an integer of at least {least}"
        raise wrong_value(name, allowed, value)
    return value


def positive_int_or_none(name, value, least=1):
    """Returns `value`, or raises a ValueError if it is neither None nor such an integer."""
    return None if value is None else positive_int(name, value, least)


def number_from_0(name, value):
    """Returns `value`, or raises a ValueError if it is not a finite number of at least 0."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf:
        raise wrong_value(name, "a number of at least 0", value)
    return value


def one_of(name, value, *allowed):
    """Returns `value`, or raises a ValueError if it is not one of the allowed strings."""
    if value not in allowed:
        raise wrong_value(name, f"one of {', '.join(allowed)}", value)
    return value


def true_or_false(name, value):
    """Returns `value`, or raises a ValueError if it is not a bool."""
    if not isinstance(value, bool):
        raise wrong_value(name, "True or False", value)
    return value
