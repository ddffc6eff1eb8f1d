"""The keys of a configuration, each declared once: type, range, default and meaning.

A section of a configuration is a dataclass. Each of its fields is a key, created by `field`, or
another section, created by `section`. The checks of values, their messages and the table of all
keys follow from these declarations.

>>> from rt_keras.arguments import AT_LEAST_1, POSITIVE
>>> @dataclasses.dataclass
... class Training:
...     steps: int = field(100, "number of steps", AT_LEAST_1)
...     clip: float | None = field(None, "largest norm of the gradient", POSITIVE)
>>> training = Training()
>>> set_value(training, "steps", 5)
>>> training
Training(steps=5, clip=None)
>>> set_value(training, "clip", -1.0)
Traceback (most recent call last):
    ...
ValueError: clip is -1.0 (float); it must be a number above 0, or null
"""

import copy
import dataclasses
import functools
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


@functools.cache
def keys_of(cls, outer="", kinds=None):
    """Returns the declarations of all keys of a section and of its subsections.

    Args:
        cls: the section, a dataclass.
        outer: string, the prefix of the names, such as "model.". Defaults to "".
        kinds: the `kinds` of keys that do not declare any. Defaults to None.

    Returns:
        Dictionary from names, such as "model.image.height", to `Key`.
    """
    keys = {}
    for declared in dataclasses.fields(cls):
        name, metadata = outer + declared.name, declared.metadata
        used_by = metadata["kinds"] or kinds
        if dataclasses.is_dataclass(declared.type):
            keys |= keys_of(declared.type, f"{name}.", used_by)
        else:
            types = typing.get_args(declared.type) or (declared.type,)
            any_value = Allowed(" or ".join(ANY[x] for x in types if x in ANY))
            allowed = metadata["allowed"] or any_value
            default, meaning = declared.default_factory(), metadata["meaning"]
            keys[name] = Key(name, types, default, meaning, allowed, used_by)
    return keys


def values_of(section):
    """Returns the values of a section, a dataclass, by their dotted keys."""
    return {name: operator.attrgetter(name)(section) for name in keys_of(type(section))}


def changed_values(section):
    """Returns the values of a section that differ from their defaults, by their dotted keys."""
    keys = keys_of(type(section))
    return {name: x for name, x in values_of(section).items() if x != keys[name].default}


def set_value(section, path, value):
    """Sets a key of a section, or an option in a list.

    Args:
        section: the section, a dataclass.
        path: string, the key with its sections, such as "model.num_layers", or an option in its
            list, such as "model.heads[0].num_heads".
        value: the value.

    Raises:
        ValueError: if the key is unknown, or the value has the wrong type or is out of range.

    >>> @dataclasses.dataclass
    ... class Model:
    ...     heads: list = field([{"class": "FullHeads", "num_heads": 4}], "heads of each block")
    >>> model = Model()
    >>> set_value(model, "heads[0].num_heads", 2)
    >>> model.heads[0]["num_heads"]
    2
    """
    keys, name = keys_of(type(section)), path.partition("[")[0]
    if name not in keys:
        raise ValueError(_unknown(name, keys))
    if name == path:
        value = keys[name].read(value)
    holder, (*outer, last) = section, re.findall(r"[^.[\]]+", path)
    try:
        for step in outer:
            holder = _items(holder)[int(step) if isinstance(holder, list) else step]
        _items(holder)[int(last) if isinstance(holder, list) else last] = value
    except (LookupError, TypeError, ValueError):
        problem = "an entry of a list has a number, such as model.heads[0].num_heads"
        raise ValueError(f"unknown key {path}; {problem}") from None


def _items(holder):
    """Returns a list or a dictionary; the dictionary of the values of a section."""
    return holder if isinstance(holder, (list, dict)) else vars(holder)


def place_of(path, places):
    """Returns the place that sets a key, or the list or section it is in; with ": ", or ""."""
    while path and path not in (places or ()):
        path = re.sub(r"[.[]?[^.[]*$", "", path)
    return f"{places[path]}: " if path else ""


def located(error, path, places):
    """Returns the error of a constructor with the place that sets the argument it is about.

    Args:
        error: the exception. Most messages begin with the name of the argument.
        path: string, the key that describes what is constructed, such as "model.heads[0]".
        places: dictionary from keys to the files and lines that set them.
    """
    argument = re.match(r"(?:model\.)?(\w*)", str(error))[1]
    return ValueError(f"{place_of(f'{path}.{argument}', places)}{path}: {error}")


def _unknown(name, known):
    """Returns the message for an unknown key, with the nearest known one."""
    inside = [other for other in known if other.startswith(f"{name}.")]
    if inside:
        return f"{name} is a section; set its keys: {', '.join(inside)}"
    return f"unknown key {name}; the nearest known key is {nearest(name, known)}"
