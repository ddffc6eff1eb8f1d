"""The keys of a configuration, each declared once: type, range, default and meaning.

A section of a configuration is a dataclass. Each of its fields is a key, created by `field`, or
another section, created by `section`. The checks of values, their messages and the table of all
keys follow from these declarations.

>>> from rt_keras.arguments import AT_LEAST_1, POSITIVE
>>> @dataclasses.dataclass
... class Training:
...     steps: int = field(100, "number of steps", AT_LEAST_1)
...     clip: float | None = field(None, "largest norm of the gradient", POSITIVE)
>>> read_section(Training, {"steps": 5}, "training.")
Training(steps=5, clip=None)
>>> read_section(Training, {"clip": -1.0}, "training.")
Traceback (most recent call last):
    ...
ValueError: training.clip is -1.0 (float); it must be a number above 0, or null
"""

import copy
import dataclasses
import operator
import re
import typing
from typing import NamedTuple

from rt_keras.arguments import Allowed
from rt_keras.training.config_files import nearest

ANY = {bool: "true or false", int: "an integer", float: "a number", str: "text", list: "a list"}


def field(default, meaning, allowed=None, kinds=None):
    """Creates a field of a section that holds one value.

    Args:
        default: the default value.
        meaning: string, the meaning of the key, in a few words.
        allowed: the `Allowed` values. Defaults to None, for all values of the type.
        kinds: tuple of strings, the values of `model.kind` that use the key. Defaults to None, for
            all.

    Returns:
        A `dataclasses.field`. Its annotation must be `bool`, `int`, `float`, `str` or `list`, or
        one of these `| None` to allow null.
    """
    metadata = {"meaning": meaning, "allowed": allowed, "kinds": kinds}
    return dataclasses.field(default_factory=lambda: copy.deepcopy(default), metadata=metadata)


def section(cls, kinds=None):
    """Creates a field that is another section; the annotation must be the same dataclass."""
    return dataclasses.field(default_factory=cls, metadata={"kinds": kinds})


class Key(NamedTuple):
    """The declaration of one key, as returned by `keys_of`.

    Attributes:
        name: string, the key with its sections, such as "model.image.height".
        types: tuple of types, with `NoneType` if the value may be None (null in YAML).
        default: the default value.
        meaning: string, the meaning of the key.
        allowed: the `Allowed` values.
        kinds: tuple of the values of `model.kind` that use the key; None for all.
    """

    name: str
    types: tuple
    default: object
    meaning: str
    allowed: Allowed
    kinds: tuple | None

    @property
    def values(self):
        """The allowed values, in words."""
        return self.allowed.text + (", or null" if type(None) in self.types else "")

    def read(self, value):
        """Returns the value in the key's type; raises a ValueError if it is not allowed."""
        if type(value) is int and float in self.types:
            value = float(value)
        # YAML reads 1e6 as a float.
        if type(value) is float and int in self.types and value.is_integer():
            value = int(value)
        if type(value) in self.types and (value is None or self.allowed.holds(value)):
            return value
        given = f"{value!r} ({type(value).__name__})"
        raise ValueError(f"{self.name} is {given}; it must be {self.values}")


def keys_of(cls, outer=""):
    """Returns the declarations of all keys of a section and of its subsections.

    Args:
        cls: the section, a dataclass.
        outer: string, the prefix of the names, such as "model.". Defaults to "".

    Returns:
        Dictionary from names, such as "model.image.height", to `Key`.
    """
    hints, keys = typing.get_type_hints(cls), {}
    for declared in dataclasses.fields(cls):
        name, hint, kinds = outer + declared.name, hints[declared.name], declared.metadata["kinds"]
        if dataclasses.is_dataclass(hint):
            inside = keys_of(hint, f"{name}.")
            keys |= {name: key._replace(kinds=key.kinds or kinds) for name, key in inside.items()}
        else:
            types = typing.get_args(hint) or (hint,)
            meaning, allowed = declared.metadata["meaning"], declared.metadata["allowed"]
            allowed = allowed or Allowed(" or ".join(ANY[x] for x in types if x in ANY))
            keys[name] = Key(name, types, declared.default_factory(), meaning, allowed, kinds)
    return keys


def values_of(section):
    """Returns the values of a section, a dataclass, by their dotted keys."""
    return {name: operator.attrgetter(name)(section) for name in keys_of(type(section))}


def changed_values(section):
    """Returns the values of a section that differ from their defaults, by their dotted keys."""
    keys = keys_of(type(section))
    return {name: x for name, x in values_of(section).items() if x != keys[name].default}


def read_section(cls, values, outer="", places=None):
    """Creates a section from values, after checking them.

    Args:
        cls: the section, a dataclass.
        values: nested dictionaries of the section's keys.
        outer: string, the prefix of the names of keys in messages, such as "model.". Defaults to
            "".
        places: dictionary from keys to the files and lines that set them, for messages. Defaults
            to None.

    Returns:
        An object of class `cls`. Keys without a value have their default.

    Raises:
        ValueError: if a key is unknown, or its value has the wrong type or is out of range.
    """
    hints, keys, arguments = typing.get_type_hints(cls), keys_of(cls, outer), {}
    for name, value in values.items():
        path = f"{outer}{name}"
        if dataclasses.is_dataclass(hints.get(name)) and isinstance(value, dict):
            arguments[name] = read_section(hints[name], value, f"{path}.", places)
            continue
        try:
            if path not in keys:
                raise ValueError(_unknown(path, keys))
            arguments[name] = keys[path].read(value)
        except ValueError as error:
            raise ValueError(f"{place_of(path, places)}{error}") from None
    return cls(**arguments)


def place_of(path, places):
    """Returns the place that sets a key, or the list or section it is in; with ": ", or ""."""
    while path and path not in (places or ()):
        path = re.sub(r"\.?[^.[]*$|\[[^[]*$", "", path)
    return f"{places[path]}: " if path else ""


def _unknown(name, known):
    """Returns the message for an unknown key, with the nearest known one."""
    inside = [other for other in known if other.startswith(f"{name}.")]
    if inside:
        return f"{name} is a section; set its keys: {', '.join(inside)}"
    return f"unknown key {name}; the nearest known key is {nearest(name, known)}"


def set_value(values, path, value, places=None):
    """Sets a value in nested dictionaries and lists; `places` as in `read_section`.

    >>> heads = {"model": {"heads": [{"class": "LocalHeads", "num_heads": 2}]}}
    >>> set_value(heads, "model.heads[0].num_heads", 4)
    >>> heads["model"]["heads"][0]["num_heads"]
    4
    """
    *outer, last = re.findall(r"[^.[\]]+", path)
    try:
        for name in outer:
            values = values[int(name)] if isinstance(values, list) else values.setdefault(name, {})
        values[int(last) if isinstance(values, list) else last] = value
    except (IndexError, ValueError, TypeError, AttributeError):
        problem = "an entry of a list has a number, such as model.heads[0].num_heads"
        raise ValueError(f"{place_of(path, places)}unknown key {path}; {problem}") from None
