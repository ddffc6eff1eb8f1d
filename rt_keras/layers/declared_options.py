"""The options of kinds of heads that declare their sets of keys.

Each option is declared once, by a set. The constructor of a kind and its section of a configuration
are derived from these declarations.
"""

import dataclasses
import inspect
import typing
from typing import NamedTuple

from rt_keras.keys import key
from rt_keras.layers.key_sets.key_set import options_of


@dataclasses.dataclass
class OfUnion:
    """The option of a union."""

    share_qk: bool = key(False, "whether queries are also keys in a decoder's self-attention")


class Option(NamedTuple):
    """An option of heads.

    Attributes:
        field: the `dataclasses.Field` that declares it.
        type: type, such as `int | None`.
        owner: the class with the field.
    """

    field: dataclasses.Field
    type: type
    owner: type


def options_of_class(owner):
    """Returns the options that a class of sets declares.

    Args:
        owner: subclass of `KeySet`.

    Returns:
        Dictionary from names to `Option`.

    >>> from rt_keras.layers.key_sets import Persistent
    >>> options_of_class(Persistent)["num_persistent_keys"].field.metadata["meaning"]
    'learned keys and values per head'
    """
    hints = typing.get_type_hints(owner)
    return {x.name: Option(x, hints[x.name], owner) for x in options_of(owner)}


def options_of_kind(cls):
    """Returns the options of a kind of heads, each from the first of its sets that has it.

    Args:
        cls: subclass of `Heads` with `declared`.

    Returns:
        Dictionary from names to `Option`, including the option of the union.

    >>> from rt_keras.layers import LocalRoutingHeads
    >>> options_of_kind(LocalRoutingHeads)["look_back"].owner.__name__
    'Window'
    """
    found = {}
    for owner in (*cls.declared, OfUnion):
        found = {**found, **options_of_class(owner), **found}
    fixed = cls.fixed if cls.can_share_qk else {**cls.fixed, "share_qk": False}
    return {name: option for name, option in found.items() if name not in fixed}


def sets_of_kind(cls, values):
    """Creates the sets of keys of a kind of heads.

    Args:
        cls: subclass of `Heads` with `declared`.
        values: dictionary from names to values, of its options and of fixed options.

    Returns:
        A list of `KeySet`.
    """
    options = options_of_kind(cls)
    return [
        key_set(
            **{
                name: values[name]
                for name in options_of_class(key_set)
                if name in cls.fixed or options[name].owner is key_set
            }
        )
        for key_set in cls.declared
    ]


def signature_of_kind(cls):
    """Returns the signature of the constructor of a kind of heads, required arguments first.

    Args:
        cls: subclass of `Heads` with `declared`.

    Returns:
        An `inspect.Signature`.
    """
    empty = inspect.Parameter.empty
    defaults = {"num_heads": empty}
    for name, option in options_of_kind(cls).items():
        given_first = option.field.default is dataclasses.MISSING
        defaults[name] = empty if given_first else option.field.default
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature(
        [
            inspect.Parameter("self", kind),
            *(
                inspect.Parameter(name, kind, default=defaults[name])
                for name in sorted(defaults, key=lambda name: defaults[name] is not empty)
            ),
            inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD),
        ]
    )
