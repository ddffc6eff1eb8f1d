import numpy as np
import pytest

from rt_keras.benchmarks.quality.tasks.mqar import PAIRS, MultiQueryRecall


def sample(length, batch):
    return MultiQueryRecall(length).sample(np.random.default_rng(1), batch, False)


@pytest.mark.parametrize("length", PAIRS)
def test_every_scored_target_is_the_value_beside_its_key(length):
    pairs = PAIRS[length]
    orders = set()
    for row, target, weight in zip(*sample(length, 20)):
        context = row[: 2 * pairs].tolist()
        value_of = dict(zip(context[::2], context[1::2]))
        assert len(value_of) == len(set(value_of.values())) == pairs
        assert all(0 < key < 4096 for key in value_of)
        assert all(4096 <= value < 8192 for value in value_of.values())
        scored = np.flatnonzero(weight)
        assert (scored >= 2 * pairs).all() and (scored % 2 == 0).all()
        # Each key is queried once, in any order.
        assert sorted(row[scored]) == sorted(value_of)
        assert [value_of[key] for key in row[scored]] == target[scored].tolist()
        orders.add(tuple(context[::2].index(key) for key in row[scored]))
    assert len(orders) > 10
