import numpy as np

from rt_keras.benchmarks.quality import kinds
from rt_keras.benchmarks.quality.tasks.recall import Recall


def test_what_is_scored_stood_before_at_a_distance_drawn_anew():
    tokens, targets, weights = Recall(128).sample(np.random.default_rng(0), 64, False)
    np.testing.assert_array_equal(tokens[:, 1:], targets[:, :-1])
    distances, starts, same = [], [], []
    for row, target, weight in zip(tokens, targets, weights):
        scored = np.flatnonzero(weight)
        assert len(scored) == 47 and scored[-1] - scored[0] == 46
        # The distance to the earlier occurrence, by trying all.
        every = range(1, scored[0] + 1)
        (back,) = (d for d in every if (row[scored - d] == row[scored]).all())
        distances.append(back)
        starts.append(scored[0])
        # The token to predict follows the earlier one.
        np.testing.assert_array_equal(target[scored], row[scored - back + 1])
        before = np.arange(back, scored[0])
        same += (row[before] == row[before - back]).tolist()
    assert min(distances) >= 48 and max(distances) <= 80
    assert len(set(distances)) > 20 and len(set(starts)) > 20
    # The gap is not a repetition, and local heads do not reach beyond it by default.
    assert np.mean(same) < 0.05 and kinds.reach(keys=8) < 48
