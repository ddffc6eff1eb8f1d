"""The table of what heads can do has what they say of themselves, and what they do."""

from pathlib import Path

import pytest

from tests.contract.kinds import GROUPED, UNIONS, Heads, is_refused, label, layers
from tests.contract.ways import directions

PAGE = Path(__file__).parents[2] / "docs" / "understand" / "choosing_heads.md"
# Those with the options that change what they can do; others have a row for what they are without.
FORMS = [
    *((name, {}) for name, layer in layers().items() if layer not in UNIONS),
    ("LocalHeads", {"grid": (2, 2)}),
    ("RoutingHeads", {"assignment": "balanced"}),
    ("LocalRoutingHeads", {"routed_key": "key"}),
    ("FullHeads", {"memory_length": 3}),
    ("ClusteredHeads", {"causal_by_mask": True, "top_k": 3}),
]


def row(name, chosen):
    """The row of the table for heads of a kind with options."""
    heads = Heads(name, chosen)
    group = heads.group
    shown = ", ".join(f"{option}={_shown(option, value)}" for option, value in chosen.items())
    if True not in directions(group):
        causal = "never"
    else:
        causal = "strictly" if group.abilities.strictly_causal else "by mask"
    cache, chunks = "none", "no"
    if group.abilities.cached:
        cache = "grows" if not group.abilities.bounded else "bounded"
        chunks = "one pass" if group.abilities.chunks else "step by step"
    cells = [
        f"`{name}({shown})`" if shown else f"`{name}`",
        f"{causal}, always" if not group.abilities.bidirectional else causal,
        cache,
        chunks,
        "yes" if group.abilities.stateful else "no",
        "yes" if _takes_other_lengths(heads) else "no",
        _inside_adapted_decoders(group),
        "no" if is_refused(name, *chosen.items(), (GROUPED, 1)) else "yes",
        "yes" if group.abilities.pair_masks else "no",
        "yes" if group.abilities.global_tokens else "no",
        "yes" if group.abilities.weighted else "no",
    ]
    return f"| {' | '.join(cells)} |"


def _takes_other_lengths(heads):
    """Whether queries can attend to keys that are not as many."""
    inputs, others = heads.inputs(), heads.inputs(length=heads.length // 2)
    inputs |= {name: others[name] for name in ("value", "key") if name in others}
    try:
        heads.group(**inputs, use_causal_mask=not heads.group.abilities.bidirectional)
    except ValueError:
        return False
    return True


def _inside_adapted_decoders(group):
    """Describes a KerasHub decoder with such heads instead of its own."""
    if not group.abilities.causal:
        return "no"
    return "generates" if group.abilities.cached else "scores"


def _shown(option, value):
    numbers = {"grid": "...", "memory_length": "m", "top_k": "k"}
    return numbers.get(option, f'"{value}"' if isinstance(value, str) else value)


@pytest.mark.parametrize("form", FORMS, ids=label)
def test_every_kind_has_its_row(form):
    assert row(*form) in PAGE.read_text(encoding="utf-8").splitlines()
