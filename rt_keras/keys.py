"""The keys of a configuration, each declared once: type, range, default and meaning.

A section of a configuration is a dataclass. Each of its fields is a key, created by `key`, or
another section, created by `section`. The checks of values, their messages and the table of all
keys follow from these declarations.

>>> @dataclasses.dataclass
... class Training:
...     steps: int = key(100, "number of steps", AT_LEAST_1)
...     name: str = key("adam", "the optimizer", one_of("adam", "adafactor"))
...     clip: float | None = key(None, "largest norm of the gradient", POSITIVE)
>>> read_section(Training, {"steps": 5}, "training.")
Training(steps=5, name='adam', clip=None)
>>> read_section(Training, {"clip": -1.0}, "training.")
Traceback (most recent call last):
    ...
ValueError: training.clip is -1.0 (float); it must be a number above 0, or null
"""

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Allowed:
    """The allowed values of a key.

    Args:
        text: string, the description for messages: "it must be {text}".
        holds: function that returns whether a value of the key's type is allowed.
    """

    text: str
    holds: Callable[[object], bool] = lambda value: True


AT_LEAST_0 = Allowed("an integer of at least 0", lambda value: value >= 0)
AT_LEAST_1 = Allowed("an integer of at least 1", lambda value: value >= 1)
AT_LEAST_2 = Allowed("an integer of at least 2", lambda value: value >= 2)
POSITIVE = Allowed("a number above 0", lambda value: 0 < value < float("inf"))
NOT_NEGATIVE = Allowed("a number of at least 0", lambda value: 0 <= value < float("inf"))
SHARE = Allowed("a number from 0 to 1", lambda value: 0 <= value <= 1)
SHARE_BELOW_1 = Allowed("at least 0 and below 1", lambda value: 0 <= value < 1)
ANY = {
    bool: Allowed("true or false"),
    int: Allowed("an integer"),
    float: Allowed("a number"),
    str: Allowed("text"),
}


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


def key(default, meaning, allowed=None):
    """Creates a field of a section that holds one value.

    Args:
        default: the default value; `dataclasses.MISSING` for a required key.
        meaning: string, the meaning of the key, in a few words.
        allowed: the `Allowed` values. Defaults to None, for all values of the type.

    Returns:
        A `dataclasses.field`. Its annotation must be `bool`, `int`, `float` or `str`, or one of
        these `| None` to allow null.
    """
    metadata = {"meaning": meaning, "allowed": allowed}
    return dataclasses.field(default=default, metadata=metadata)


def section(cls):
    """Creates a field of a section that is another section.

    Args:
        cls: the dataclass of the section, with a docstring. The annotation of the field must be the
            same class.
    """
    return dataclasses.field(default_factory=cls)


@dataclasses.dataclass(frozen=True)
class Key:
    """The declaration of one key, as returned by `keys_of`.

    Args:
        name: string, the key with its sections, such as "model.local.block_size".
        type: `bool`, `int`, `float` or `str`.
        optional: bool, whether the value may be None (null in YAML).
        default: the default value.
        meaning: string, the meaning of the key.
        allowed: the `Allowed` values.
    """

    name: str
    type: type
    optional: bool
    default: object
    meaning: str
    allowed: Allowed

    @property
    def values(self):
        """The allowed values, in words."""
        return self.allowed.text + (", or null" if self.optional else "")

    def check(self, value):
        """Returns the value in the key's type; raises a ValueError if it is not allowed."""
        # YAML 1.1 reads 1e-3 and 1e6, without a decimal point, as text.
        if self.type in (int, float) and re.fullmatch(r"[-+]?\d+[eE][-+]?\d+", str(value)):
            value = float(value)
            if self.type is int and value.is_integer():
                value = int(value)
        if self.allows(value):
            return float(value) if self.type is float and value is not None else value
        given = f"{value!r} ({type(value).__name__})"
        raise ValueError(f"{self.name} is {given}; it must be {self.values}")

    def allows(self, value):
        """Returns whether a value is allowed. Ints are also floats; bools are not ints."""
        if value is None:
            return self.optional
        if isinstance(value, bool):
            return self.type is bool
        is_of_type = isinstance(value, (int, float) if self.type is float else self.type)
        return is_of_type and self.allowed.holds(value)


def keys_of(cls, prefix=""):
    """Returns the declarations of all keys of a section and of its subsections.

    Args:
        cls: the section, a dataclass.
        prefix: string, the prefix of the names, such as "model.". Defaults to "".

    Returns:
        Dictionary from names, such as "model.local.block_size", to `Key`.
    """
    hints, found = typing.get_type_hints(cls), {}
    for field in dataclasses.fields(cls):
        name, hint = prefix + field.name, hints[field.name]
        if dataclasses.is_dataclass(hint):
            found |= keys_of(hint, f"{name}.")
        # Configuration files do not hold other fields.
        elif field.metadata:
            optional = isinstance(hint, types.UnionType)
            of_type = typing.get_args(hint)[0] if optional else hint
            meaning, allowed = field.metadata["meaning"], field.metadata["allowed"] or ANY[of_type]
            found[name] = Key(name, of_type, optional, field.default, meaning, allowed)
    return found


def check_values(cls, values, prefix=""):
    """Validates values against the declarations of their keys.

    Args:
        cls: the section, a dataclass.
        values: dictionary of the section's keys. The keys of a subsection are in a nested
            dictionary, or have its name and a dot as prefix.
        prefix: string, the prefix of the names of keys in messages, such as "model.". Defaults to
            "".

    Returns:
        The values, with a nested dictionary for each subsection.

    Raises:
        ValueError: if a key is unknown, or its value has the wrong type or is out of range.

    >>> @dataclasses.dataclass
    ... class Heads:
    ...     num_heads: int = key(2, "number of heads", AT_LEAST_0)
    >>> @dataclasses.dataclass
    ... class Model:
    ...     local: Heads = section(Heads)
    >>> check_values(Model, {"local.num_heads": 4})
    {'local': {'num_heads': 4}}
    """
    keys, nested = keys_of(cls, prefix), {}
    for name, value in _flat(values, keys, prefix):
        if name not in keys:
            raise ValueError(unknown_key(name, list(keys)))
        *sections, last = name.removeprefix(prefix).split(".")
        inner = nested
        for outer in sections:
            inner = inner.setdefault(outer, {})
        inner[last] = keys[name].check(value)
    return nested


def _flat(values, keys, prefix):
    """Yields names and values. Only declared sections are flattened."""
    for name, value in values.items():
        name = f"{prefix}{name}"
        if isinstance(value, dict) and any(known.startswith(f"{name}.") for known in keys):
            yield from _flat(value, keys, f"{name}.")
        else:
            yield name, value


def read_section(cls, values, prefix=""):
    """Creates a section from values, after checking them.

    Args:
        cls: the section, a dataclass.
        values, prefix: see `check_values`.

    Returns:
        An object of class `cls`. Keys without a value have their default.

    Raises:
        ValueError: as for `check_values`.
    """
    return _made(cls, check_values(cls, values, prefix))


def _made(cls, nested):
    hints = typing.get_type_hints(cls)
    return cls(**{k: _made(hints[k], v) if isinstance(v, dict) else v for k, v in nested.items()})


def unknown_key(name, known):
    """Returns the error message for an unknown key, with the nearest known key."""
    inside = [other for other in known if other.startswith(f"{name}.")]
    if inside:
        return f"{name} is a section; set its keys: {', '.join(inside)}"
    outer = name.rpartition(".")[0] + "."
    prefix = outer if any(other.startswith(outer) for other in known) else ""
    rests = [other.removeprefix(prefix) for other in known if other.startswith(prefix)]
    own = name.removeprefix(prefix)
    same = [prefix + rest for rest in rests if rest.endswith(f".{own}")]
    if len(same) > 1:
        return f"unknown key {name}; there are {', '.join(same)}"
    nearest = difflib.get_close_matches(own, rests, n=1, cutoff=0.0)[0]
    return f"unknown key {name}; the nearest known key is {prefix}{nearest}"
