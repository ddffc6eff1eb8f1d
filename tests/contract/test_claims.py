"""Tests that every kind of heads does what it declares, and that false declarations fail."""

import keras
import pytest

from rt_keras.layers import Heads as Union
from rt_keras.layers import LSHHeads, RandomHeads
from rt_keras.layers.abilities import Abilities
from rt_keras.layers.key_sets import KeySet, Strided, Window
from rt_keras.ops import local_attention, random_attention
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
    if heads.group.abilities.causal:
        heads.group(**heads.inputs(), use_causal_mask=True)
    warned = [str(x.message) for x in recwarn if "use_causal_mask=True" in str(x.message)]
    assert bool(warned) == (
        heads.group.abilities.causal and not heads.group.abilities.strictly_causal
    )
    assert all(heads.group.kind in text for text in warned)


class SaysAHashIsCausal(LSHHeads):
    """What shares a chunk depends on the whole sequence, and in few sequences shows."""

    abilities = Abilities(strictly_causal=True)


class SaysItSeparatesDocuments(LSHHeads):
    """Documents share buckets."""

    abilities = Abilities(documents=True)

    def attend(self, inputs, return_logsumexp=False):
        return super().attend(inputs._replace(documents=None))


class SaysItIsNot(Window):
    """A window up to the query's own position."""

    @property
    def abilities(self):
        return super().abilities._replace(strictly_causal=False)


class SaysItIsBounded(Strided):
    """Every position is kept."""

    @property
    def abilities(self):
        return super().abilities._replace(bounded=True)


class SaysItTakesMasks(Window):
    """There is no matrix of pairs to mask."""

    @property
    def abilities(self):
        return super().abilities._replace(pair_masks=True)


class SaysItGivesWeights(Window):
    """Returns outputs that are not sums of values."""

    def attend(self, inputs, return_logsumexp):
        return super().attend(inputs, return_logsumexp) ** 2


class SaysItReadsChunks(Strided):
    """Chunks are read position by position."""

    @property
    def abilities(self):
        return super().abilities._replace(chunks=True)


class StepsElsewhere(Window):
    """A step sees more than one pass does."""

    def attend(self, inputs, return_logsumexp):
        vectors, options = (inputs.query, inputs.keys, inputs.value), inputs.sequence_options()
        options |= {"look_back": 0, "return_logsumexp": return_logsumexp}
        return local_attention(*vectors, block_size=self.block_size, **options)


def heads_of(liar):
    """The heads of a kind, or of a set of keys alone."""
    if not issubclass(liar, KeySet):
        return liar

    def LyingHeads(num_heads, size, **kwargs):
        return Union(num_heads, [liar(size)], **kwargs)

    return LyingHeads


class ForgetsAnOption(RandomHeads):
    """`max_relative_distance` is taken and has no effect."""

    def attend(self, inputs, return_logsumexp=False):
        return random_attention(
            inputs.query,
            inputs.key,
            inputs.value,
            num_clusters=self.num_clusters,
            window_size=self.window_size,
            routing_seed=self.routing_seed,
            **inputs.sequence_options(shared=True),
        )


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
    """As it would be if it were a kind of the package."""
    keras.saving.register_keras_serializable(package="tests")(liar)
    kind = heads_of(liar)
    monkeypatch.setattr(kinds, "layers", lambda: {kind.__name__: kind})
    heads = Heads(kind.__name__, {})
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
