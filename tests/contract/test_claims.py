"""Tests that every kind of heads does what it declares, and that false declarations fail."""

import keras
import pytest

from rt_keras.layers import LocalHeads, LSHHeads, RandomHeads, StridedHeads
from rt_keras.ops import local_attention
from tests.contract import kinds
from tests.contract.claims import (
    CLAIMS,
    keeps_all_claims,
    keeps_documents_apart,
    keeps_its_causality,
    takes_any_shape,
)
from tests.contract.kinds import NAMES, Heads, label, layers, sets_of_values
from tests.contract.ways import compute_the_same

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
    if heads.group.takes_causal_mask:
        heads.group(**heads.inputs(), use_causal_mask=True)
    warned = [str(x.message) for x in recwarn if "use_causal_mask=True" in str(x.message)]
    assert bool(warned) == (heads.group.takes_causal_mask and not heads.group.strictly_causal)
    assert all(name in text for text in warned)


class SaysAHashIsCausal(LSHHeads):
    """What shares a chunk depends on the whole sequence, and in few sequences shows."""

    strictly_causal = True


class SaysItIsNot(LocalHeads):
    """A window up to the query's own position."""

    strictly_causal = False


class SaysItIsBounded(StridedHeads):
    """Every position is kept."""

    cache_grows = False


class SaysItTakesMasks(LocalHeads):
    """There is no matrix of pairs to mask."""

    takes_attention_mask = True

    def attend(self, attention_mask=None, **arguments):
        return super().attend(**arguments)


class SaysItSeparatesDocuments(LSHHeads):
    """Documents share buckets."""

    separates_documents = True

    def attend(self, documents=None, **arguments):
        return super().attend(**arguments)


class SaysItGivesWeights(LocalHeads):
    """Returns outputs that are not sums of values."""

    def attend(self, **arguments):
        return super().attend(**arguments) ** 2


class SaysItReadsChunks(StridedHeads):
    """Chunks are read position by position."""

    reads_chunks = True


class StepsElsewhere(LocalHeads):
    """A step sees more than one pass does."""

    def attend(self, **arguments):
        return local_attention(block_size=self.block_size, look_back=0, **arguments)


class ForgetsAnOption(RandomHeads):
    """`max_relative_distance` is taken and has no effect."""

    def tables(self):
        return {}


@pytest.mark.parametrize(
    "liar",
    [
        SaysAHashIsCausal,
        SaysItIsNot,
        SaysItIsBounded,
        SaysItTakesMasks,
        SaysItSeparatesDocuments,
        SaysItGivesWeights,
        SaysItReadsChunks,
        StepsElsewhere,
    ],
    ids=lambda liar: liar.__name__,
)
def test_a_kind_that_lies_is_found_out(liar, monkeypatch):
    """As it would be if it stood in the table of kinds."""
    keras.saving.register_keras_serializable(package="tests")(liar)
    monkeypatch.setattr(kinds, "layers", lambda: {liar.__name__: liar})
    heads = Heads(liar.__name__, {})
    found_out = AssertionError, pytest.fail.Exception, ValueError, NotImplementedError, TypeError
    with pytest.raises(found_out):
        for claim in CLAIMS:
            claim(heads)
        compute_the_same(heads)


def test_an_option_without_effect_is_found_out(monkeypatch):
    monkeypatch.setattr(kinds, "layers", lambda: {"ForgetsAnOption": ForgetsAnOption})
    assert "max_relative_distance" in kinds.without_effect("ForgetsAnOption")


@pytest.mark.weekly
@pytest.mark.parametrize("name", layers())
def test_every_option_has_an_effect(name):
    assert kinds.without_effect(name) == []
