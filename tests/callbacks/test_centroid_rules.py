import numpy as np
import pytest

from rt_keras.callbacks import centroid_rules
from tests.callbacks.test_centroid_ema import assert_close, count_rule, load_rule, mean_rule, unit


def make_state(sources, seed=0):
    """Centroids and averages, and counts and sums in which a cluster has no members."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 4, size=(sources, 2, 3)).astype("float64")
    counts[:, 0, 1] = 0
    sums = rng.normal(size=(sources, 2, 3, 4)) * (counts > 0)[..., None]
    state = {
        "centroids": unit(rng.normal(size=(2, 3, 4))),
        "average_counts": rng.random((2, 3)),
        "average_sums": rng.normal(size=(2, 3, 4)),
    }
    return state, counts, sums


@pytest.mark.parametrize("sources", [1, 2])
def test_centroids_move_as_in_the_loop_and_those_without_members_stay(sources):
    state, counts, sums = make_state(sources)
    means = centroid_rules.mean_update(state["centroids"], counts, sums, 0.7)
    assert_close({"centroids": means}, mean_rule(state, counts, sums, 0.7))
    averages = [state["average_counts"], state["average_sums"]]
    averages = centroid_rules.moving_averages(*averages, counts, sums, 0.7)
    found = centroid_rules.count_update(state["centroids"], counts, *averages)
    names = ("average_counts", "average_sums", "centroids")
    assert_close(dict(zip(names, (*averages, found))), count_rule(state, counts, sums, 0.7))
    for centroids in (means, found):
        np.testing.assert_array_equal(centroids[0, 1], state["centroids"][0, 1])


def test_load_bias():
    load_bias, (_, counts, _) = np.random.default_rng(1).normal(size=(2, 3)), make_state(2)
    counts[:, 1] = 0
    found = centroid_rules.moved_load_bias(load_bias, counts.sum(0), 0.2)
    np.testing.assert_allclose(found, load_rule(load_bias, counts, 0.2), rtol=0, atol=1e-12)
    np.testing.assert_array_equal(found[1], load_bias[1])
    assert abs(np.mean(found[0])) < 1e-12
