"""Every kind of heads with every option: right in all ways, or refused by name when it is built.

A sample of pairs is fast; all values, three options at a time, and pairs that the commit draws are
slow; all pairs are for every week.
"""

import random
import subprocess
from pathlib import Path

import pytest

from tests.contract import kinds
from tests.contract.ways import compute_the_same

pytestmark = pytest.mark.filterwarnings("ignore:With use_causal_mask", "ignore:.*nothing updates")


def sampled(cases, count, seed=0):
    return random.Random(seed).sample(list(cases), count)


def is_right_or_refused(name, chosen, **sizes):
    heads = kinds.Heads(name, chosen)
    if heads.refusal is not None:
        assert heads.is_named_in_refusal(), str(heads.refusal)
        return
    compute_the_same(heads, **sizes)


@pytest.mark.parametrize("name", kinds.NAMES)
def test_without_options(name):
    heads = kinds.Heads(name, {})
    assert heads.refusal is None
    # Chunks of one position begin with an empty cache too.
    compute_the_same(heads, starts=(5,))


@pytest.mark.slow
@pytest.mark.parametrize("name", kinds.layers())
def test_all_values_of_options(name, subtests):
    for chosen in kinds.sets_of_values(name):
        with subtests.test(kinds.label((name, chosen))):
            # Longer chunks and steps after a prefill are those of pairs.
            is_right_or_refused(name, chosen, sizes=(1,), starts=())


def of_several_options(name, chosen):
    # Chunks shorter and longer than the sequence in turn.
    size = (7, kinds.LENGTH + 3)[len(kinds.label((name, chosen))) % 2]
    is_right_or_refused(name, chosen, sizes=(size,), starts=(9,))


@pytest.mark.parametrize("case", sampled(kinds.pairs(), 12), ids=kinds.label)
def test_two_options(case):
    of_several_options(*case)


def commit():
    """The name of the commit, so that each draws others; "" without a history."""
    command = ["git", "rev-parse", "HEAD"]
    run = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    return run.stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize("case", sampled(kinds.pairs(), 24, commit()), ids=kinds.label)
def test_two_options_drawn_by_the_commit(case):
    is_right_or_refused(*case, sizes=(7,), starts=(9,))


@pytest.mark.weekly
@pytest.mark.parametrize("name", kinds.layers())
def test_all_pairs_of_options(name, subtests):
    for kind, chosen in kinds.pairs():
        if kind == name:
            with subtests.test(kinds.label((name, chosen))):
                of_several_options(name, chosen)
