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
        causal = "strictly" if group.strictly_causal else "by mask"
    cache, chunks = "none", "no"
    if group.cached_decoding:
        cache = "grows" if group.cache_grows else "bounded"
        chunks = "one pass" if group.reads_chunks else "step by step"
    cells = [
        f"`{name}({shown})`" if shown else f"`{name}`",
        f"{causal}, always" if group.needs_causal_mask else causal,
        cache,
        chunks,
        "yes" if group.can_be_stateful else "no",
        "yes" if _takes_other_lengths(heads) else "no",
        _inside_adapted_decoders(group),
        "no" if is_refused(name, *chosen.items(), (GROUPED, 1)) else "yes",
        "yes" if group.takes_attention_mask else "no",
        "yes" if group.takes_global_tokens else "no",
        "yes" if group.returns_attention_scores else "no",
    ]
    return f"| {' | '.join(cells)} |"


def _takes_other_lengths(heads):
    """Whether queries can attend to keys that are not as many."""
    inputs, others = heads.inputs(), heads.inputs(length=heads.length // 2)
    inputs |= {name: others[name] for name in ("value", "key") if name in others}
    try:
        heads.group(**inputs, use_causal_mask=heads.group.needs_causal_mask)
    except ValueError:
        return False
    return True


def _inside_adapted_decoders(group):
    """Describes a KerasHub decoder with such heads instead of its own."""
    if not group.takes_causal_mask:
        return "no"
    return "generates" if group.cached_decoding else "scores"


def _shown(option, value):
    numbers = {"grid": "...", "memory_length": "m", "top_k": "k"}
    return numbers.get(option, f'"{value}"' if isinstance(value, str) else value)


@pytest.mark.parametrize("form", FORMS, ids=label)
def test_every_kind_has_its_row(form):
    assert row(*form) in PAGE.read_text(encoding="utf-8").splitlines()
