import numpy as np

from rt_keras.layers import CausalClusteredHeads
from tests.layers import checks


def test_centroids_learn_only_from_queries():
    query, key = checks.random(1, 2, 9, 6), checks.random(1, 2, 9, 6, seed=1)
    group = CausalClusteredHeads(2, 3, 4)
    group.has_centroid_updates = True
    group(query, key, key, use_causal_mask=True, training=True)
    assert group.member_counts.shape == (1, 2, 3)
    np.testing.assert_array_equal(group.member_counts.numpy().sum(axis=(0, 2)), [9, 9])
