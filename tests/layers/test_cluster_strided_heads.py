import numpy as np

from rt_keras.layers import ClusterStridedHeads
from tests.layers import checks


def test_centroids_learn_from_queries_and_keys():
    group = ClusterStridedHeads(2, 3, 4)
    group.has_centroid_updates = True
    group(*(checks.random(2, 2, 9, 4, seed=seed) for seed in range(3)), training=True)
    np.testing.assert_array_equal(np.sum(group.member_counts, axis=2), np.full([2, 2], 2 * 9))
