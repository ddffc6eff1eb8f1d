"""Options that several benchmarks share."""

from rt_keras.options import add_options


def add_names(parser, name, known, default=None):
    """Adds an option that selects the kinds or tasks to measure.

    Args:
        parser: `argparse.ArgumentParser`.
        name: string, the option.
        known: tuple of strings, or dictionary with such keys, all available names.
        default: tuple of strings. Defaults to None, for all names.
    """
    shown = " ".join(default or ["all"])
    meaning = f"{name} to measure: {', '.join(known)} (default: {shown})"
    default = default or tuple(known)
    add_options(parser, {f"--{name} NAME": meaning}, nargs="+", choices=known, default=default)


def add_seeds(parser):
    """Adds the option for the number of seeds."""
    meaning = "number of runs, with the seeds 0, 1, ... of weights and data (default: 1)"
    add_options(parser, {"--seeds N": meaning}, type=int, default=1)


def check_multiple(args, name, number, what=""):
    """Raises a `ValueError` if an option is not a positive multiple of a number.

    Args:
        args: namespace of the options.
        name: string, the option.
        number: int.
        what: string to print before the number. Defaults to "".
    """
    value = getattr(args, name)
    if value < 1 or value % number:
        raise ValueError(f"--{name} must be a multiple of {what}{number}. Received: {value}")


def values(args, names):
    """Returns the values of some options as a dictionary.

    >>> import argparse
    >>> values(argparse.Namespace(length=8, batch=2), ["batch"])
    {'batch': 2}
    """
    return {name: getattr(args, name) for name in names}


def words(name):
    """Replaces underscores in a name by spaces.

    >>> words("local_routing")
    'local routing'
    """
    return name.replace("_", " ")
