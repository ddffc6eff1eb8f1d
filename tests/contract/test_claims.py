"""Tests that every kind of heads does what it declares.

`.ci/mutants.yaml` has false declarations, which fail here.
"""

import pytest

from tests.contract import kinds
from tests.contract.claims import (
    CLAIMS,
    keeps_all_claims,
    keeps_documents_apart,
    keeps_its_causality,
    takes_any_shape,
)
from tests.contract.kinds import NAMES, Heads, label, layers, sets_of_values

pytestmark = pytest.mark.filterwarnings("ignore:With use_causal_mask", "ignore:.*nothing updates")


@pytest.mark.parametrize(
    "claim",
    [pytest.param(x, marks=pytest.mark.slow) if x is keeps_documents_apart else x for x in CLAIMS],
    ids=lambda claim: claim.__name__,
)
@pytest.mark.parametrize("name", NAMES)
def test_without_options(name, claim):
    claim(Heads(name, {}))


@pytest.mark.slow
@pytest.mark.parametrize("name", layers())
def test_a_layer_trained_on_unknown_shapes_even_empty_ones_is_that_of_known_shapes(name):
    takes_any_shape(Heads(name, {}))


@pytest.mark.parametrize(
    "claim",
    [
        pytest.param(keeps_its_causality, marks=pytest.mark.slow),
        pytest.param(keeps_all_claims, marks=pytest.mark.weekly),
    ],
    ids=lambda claim: claim.__name__,
)
@pytest.mark.parametrize("name", layers())
def test_all_values_of_options(name, claim, subtests):
    for chosen in sets_of_values(name):
        heads = Heads(name, chosen)
        with subtests.test(label((name, chosen))):
            if heads.refusal is None:
                claim(heads)


@pytest.mark.parametrize("name", layers())
def test_a_warning_says_who_sees_the_future(name, recwarn):
    heads = Heads(name, {})
    if heads.group.abilities.causal:
        heads.group(**heads.inputs(), use_causal_mask=True)
    warned = [str(x.message) for x in recwarn if "use_causal_mask=True" in str(x.message)]
    assert bool(warned) == (
        heads.group.abilities.causal and not heads.group.abilities.strictly_causal
    )
    assert all(heads.group.kind in text for text in warned)


@pytest.mark.weekly
@pytest.mark.parametrize("name", layers())
def test_every_option_has_an_effect(name):
    assert kinds.without_effect(name) == []
