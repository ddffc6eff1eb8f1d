import numpy as np

from rt_keras.ops import hash_buckets


def test_buckets():
    x = np.random.default_rng(0).normal(size=(2, 2, 9, 6))
    projections = np.random.default_rng(1).normal(size=(2, 3, 6))
    found = hash_buckets(x, projections)
    for b, h, i in np.ndindex(x.shape[:3]):
        bits = [int(projection @ x[b, h, i] > 0) for projection in projections[h]]
        assert found[b, h, i] == bits[0] + 2 * bits[1] + 4 * bits[2]
    # The side of a vector on the border is the lower one.
    assert not np.any(hash_buckets(np.zeros((1, 2, 3, 6)), projections))
