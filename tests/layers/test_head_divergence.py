import math
import types

import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers.head_divergence import head_divergences, jensen_shannon
from tests.layers.checks import divergence_in_a_loop


@pytest.fixture
def weights():
    """Weights of 3 heads, `[2, 3, 6, 7]`. About half are 0, but each row has some above 0."""
    rng = np.random.default_rng(0)
    weights = rng.random([2, 3, 6, 7]) * (rng.random([2, 3, 6, 7]) < 0.5)
    weights[..., 3] += 0.1
    return (weights / weights.sum(-1, keepdims=True)).astype("float32")


def call_with(weights):
    """Returns a substitute of an `AttentionCall` with these weights."""
    parts = [weights[..., :4], weights[..., 4:]]
    sums = tf.constant(weights.sum(-1))
    return types.SimpleNamespace(weights=lambda: map(tf.constant, parts), sums=lambda: sums)


def test_divergence_equals_that_of_a_loop(weights):
    found = jensen_shannon(tf.constant(weights[:, 0]), tf.constant(weights[:, 1])).numpy()
    for row, i in np.ndindex(2, 6):
        expected = divergence_in_a_loop(weights[row, 0, i].tolist(), weights[row, 1, i].tolist())
        assert found[row, i] == pytest.approx(expected, abs=1e-6)


def test_pairs_of_heads_are_compared_over_all_keys(weights):
    pairs = [(0, 2), (1, 2), (1, 1)]
    found = head_divergences(call_with(weights), pairs)
    assert found.shape == (3, 2, 6)
    for number, (i, j) in enumerate(pairs):
        expected = jensen_shannon(tf.constant(weights[:, i]), tf.constant(weights[:, j]))
        np.testing.assert_allclose(found[number], expected, atol=1e-6)
    # The sum of the weights has no effect.
    np.testing.assert_allclose(head_divergences(call_with(weights / 3), pairs), found, atol=1e-6)
    assert found.min() >= 0 and found.max() <= math.log(2) + 1e-6


def test_positions_without_visible_keys_are_nan(weights):
    weights[1, 2, 4] = 0
    found = head_divergences(call_with(weights), [(0, 2), (0, 1)])
    assert np.argwhere(np.isnan(found)).tolist() == [[0, 1, 4]]
