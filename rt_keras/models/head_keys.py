"""Head groups from the keys of a configuration, for models that are there already."""

import dataclasses

from rt_keras.keys import read_section, section
from rt_keras.models.head_kind import Place
from rt_keras.models.head_kinds import HEAD_KINDS
from rt_keras.models.model_section import ModelSection, refuse_no_heads

# The sections of heads in the section `model` of a configuration.
_Heads = dataclasses.make_dataclass(
    "_Heads", [(name, kind, section(kind)) for name, kind in HEAD_KINDS.items()]
)


def read_head_groups(values, attentions=("decoder",)):
    """The head groups that keys of a configuration describe.

    Args:
        values: dictionary from keys of the section `model`, such as "local.num_heads", to values.
        attentions: tuple of "encoder" and "decoder", the self-attention that the model has.
            Defaults to a decoder's.

    Returns:
        A list of head groups, one for each kind with heads.

    Raises:
        ValueError: if a key is unknown, its value of the wrong type or out of range, values do not
            go together, or there are no heads.

    >>> (group,) = read_head_groups({"local.num_heads": 9, "local.block_size": 256})
    >>> type(group).__name__, group.num_heads, group.block_size
    ('LocalHeads', 9, 256)
    """
    heads = read_section(_Heads, values, "model.")
    kinds = [getattr(heads, name) for name in HEAD_KINDS]
    present = [kind for kind in kinds if kind.num_heads]
    for kind in kinds:
        if kind not in present and kind.has_values():
            kind.refuse("num_heads", f"but model.{kind.name} has other values; give their number")
    if not present:
        refuse_no_heads()
    model = ModelSection(kind=_kind_of_model(attentions), **vars(heads))
    return [_group(kind, model, attentions) for kind in present]


def _kind_of_model(attentions):
    """A kind of models that has these attentions, for the checks of values."""
    kinds = {("decoder",): "causal_lm", ("encoder",): "masked_lm"}
    return kinds.get(tuple(attentions), "seq_2_seq_lm")


def _group(kind, model, attentions):
    kind.check(model)
    kind.check_attentions(attentions)
    if getattr(kind, "first_layer", 0):
        kind.refuse("first_layer", "which layers get the heads is said elsewhere: it must be 0")
    arguments = None
    for attention in attentions:
        place = Place(block=0, attention=attention)
        other = kind.replacement(place)
        if other is not None:
            kind.refuse("num_heads", f"in the {attention} there can be those of model.{other}")
        arguments = {**kind.arguments(place), "num_heads": kind.num_heads}
        if getattr(kind, "share_qk", False) and not arguments["share_qk"]:
            kind.refuse("share_qk", f"in the {attention} it must be false")
    return kind.layer(**arguments)
