import numpy as np
import pytest

from rt_keras.benchmarks.quality.tasks.mqar import PAIRS, MultiQueryRecall


def sample(length, batch=200):
    return MultiQueryRecall(length).sample(np.random.default_rng(1), batch, False)


@pytest.mark.parametrize("length", PAIRS)
def test_every_scored_target_is_the_value_beside_its_key(length):
    pairs = PAIRS[length]
    for row, target, weight in zip(*sample(length, 20)):
        context = row[: 2 * pairs].tolist()
        value_of = dict(zip(context[::2], context[1::2]))
        assert len(value_of) == len(set(value_of.values())) == pairs
        assert all(0 < key < 4096 for key in value_of)
        assert all(4096 <= value < 8192 for value in value_of.values())
        scored = np.flatnonzero(weight)
        assert (scored >= 2 * pairs).all() and (scored % 2 == 0).all()
        # Each key is queried once.
        assert sorted(row[scored]) == sorted(value_of)
        assert [value_of[key] for key in row[scored]] == target[scored].tolist()


def test_gaps_follow_the_power_law():
    _, _, weights = sample(64, 4000)
    slots = np.arange(1, 29)
    likely = slots**-0.99
    # The probability that a slot is among four drawn without replacement, estimated by drawing.
    rng = np.random.default_rng(2)
    expected = np.zeros(28)
    for _ in range(4000):
        drawn = rng.choice(28, 4, replace=False, p=likely / likely.sum())
        expected[drawn] += 1 / 4000
    found = weights[:, 8::2].mean(axis=0)
    np.testing.assert_allclose(found, expected, atol=0.04)
    assert found[0] > 5 * found[-1]


def test_keys_are_asked_for_in_any_order():
    tokens, _, weights = sample(128)
    orders = {
        tuple(np.argsort([list(row).index(key) for key in row[weight > 0]]))
        for row, weight in zip(tokens, weights)
    }
    assert len(orders) > 150


def test_noise_is_from_the_whole_vocabulary():
    tokens, _, weights = sample(512)
    noise = tokens[:, 128:][weights[:, 128:] == 0]
    assert noise.min() < 100 and noise.max() > 8100
    assert noise.mean() == pytest.approx(4096, abs=50)
