"""The options of sets of keys, each declared once: type, range, default and meaning."""

import dataclasses
import re
import types
import typing

from rt_keras.arguments import (  # noqa: F401
    AT_LEAST_0,
    AT_LEAST_1,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    SHARE_BELOW_1,
    Allowed,
    check,
    one_of,
    wrong_value,
)

ANY = {
    bool: Allowed("true or false"),
    int: Allowed("an integer"),
    float: Allowed("a number"),
    str: Allowed("text"),
}


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
