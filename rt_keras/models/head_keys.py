"""Head groups from the keys of a configuration, for existing models."""

import dataclasses

from rt_keras.keys import read_section, section
from rt_keras.models.head_kind import Place
from rt_keras.models.head_kinds import HEAD_KINDS
from rt_keras.models.model_section import ModelSection, refuse_no_heads

# Sections of the head kinds in the section `model` of a configuration.
_Heads = dataclasses.make_dataclass(
    "_Heads", [(name, kind, section(kind)) for name, kind in HEAD_KINDS.items()]
)


def read_head_groups(values, attentions=("decoder",)):
    """Creates head groups from keys of a configuration.

    Args:
        values: dictionary from keys of the section `model`, such as "local.num_heads", to values.
        attentions: tuple of `"encoder"`, `"decoder"` or both, the self-attention of the model.
            Defaults to `("decoder",)`.

    Returns:
        A list of head groups, one for each kind with heads.

    Raises:
        ValueError: if a key is unknown, a value has the wrong type or is out of range, values are
            incompatible, or there are no heads.

    >>> (group,) = read_head_groups({"local.num_heads": 9, "local.block_size": 256})
    >>> type(group).__name__, group.num_heads, group.block_size
    ('LocalHeads', 9, 256)
    """
    heads = read_section(_Heads, values, "model.")
    kinds = [getattr(heads, name) for name in HEAD_KINDS]
    present = [kind for kind in kinds if kind.num_heads]
    for kind in kinds:
        if kind not in present and kind.has_values():
            kind.refuse("num_heads", f"model.{kind.name} has other values, so it must be given")
    if not present:
        refuse_no_heads()
    model = ModelSection(kind=_kind_of_model(attentions), **vars(heads))
    return [_group(kind, model, attentions) for kind in present]


def _kind_of_model(attentions):
    """Returns a kind of model with these attentions, for the checks of values."""
    kinds = {("decoder",): "causal_lm", ("encoder",): "retriever"}
    return kinds.get(tuple(attentions), "seq_2_seq_lm")


def _group(kind, model, attentions):
    kind.check(model)
    kind.check_attentions(attentions)
    if getattr(kind, "first_layer", 0):
        kind.refuse("first_layer", "it must be 0, since the layers are selected separately")
    arguments = None
    for attention in attentions:
        place = Place(block=0, attention=attention)
        other = kind.replacement(place)
        if other is not None:
            kind.refuse("num_heads", f"in the {attention}, use model.{other} instead")
        arguments = {**kind.arguments(place), "num_heads": kind.num_heads}
        if getattr(kind, "share_qk", False) and not arguments["share_qk"]:
            kind.refuse("share_qk", f"in the {attention} it must be false")
    return kind.layer(**arguments)
