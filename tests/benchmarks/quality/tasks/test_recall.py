import numpy as np

from rt_keras.benchmarks.quality import kinds
from rt_keras.benchmarks.quality.tasks.recall import Recall


def sample(length=128, batch=64):
    return Recall(length).sample(np.random.default_rng(0), batch, False)


def distance(row, scored):
    """The distance from the scored places to their earlier occurrence, by trying all."""
    again = row[scored]
    (found,) = (d for d in range(1, scored[0] + 1) if (row[scored - d] == again).all())
    return found


def test_what_is_scored_stood_before_at_a_distance_drawn_anew():
    tokens, targets, weights = sample()
    np.testing.assert_array_equal(tokens[:, 1:], targets[:, :-1])
    distances, starts = [], []
    for row, target, weight in zip(tokens, targets, weights):
        scored = np.flatnonzero(weight)
        assert len(scored) == 47 and scored[-1] - scored[0] == 46
        distances.append(distance(row, scored))
        starts.append(scored[0])
        # The token to predict follows the earlier one.
        np.testing.assert_array_equal(target[scored], row[scored - distances[-1] + 1])
    assert min(distances) >= 48 and max(distances) <= 80
    assert len(set(distances)) > 20 and len(set(starts)) > 20


def test_the_gap_is_not_a_repetition():
    tokens, _, weights = sample()
    same = []
    for row, weight in zip(tokens, weights):
        scored = np.flatnonzero(weight)
        back = distance(row, scored)
        before = np.arange(back, scored[0])
        same += (row[before] == row[before - back]).tolist()
    assert np.mean(same) < 0.05


def test_the_repetition_lies_beyond_local_heads_by_default():
    assert kinds.reach(keys=8) < 48
