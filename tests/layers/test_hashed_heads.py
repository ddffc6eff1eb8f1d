import numpy as np
import pytest

from rt_keras.layers import HashedHeads


@pytest.mark.parametrize("num_buckets, bits", [(2, 1), (4, 2), (7, 2), (8, 3)])
def test_projections_are_orthonormal_and_drawn_from_the_seed(num_buckets, bits):
    group = HashedHeads(2, num_buckets, 4, seed=3, dtype="mixed_bfloat16")
    group.build((None, 2, None, 6), (None, 2, None, 6))
    assert group.projections.shape == (2, bits, 6)
    assert group.projections.dtype == "float32"
    assert not group.trainable_variables
    flat = group.projections.numpy().reshape(-1, 6)
    np.testing.assert_allclose(flat @ flat.T, np.eye(2 * bits), rtol=0, atol=1e-5)
    same = HashedHeads(2, num_buckets, 4, seed=3)
    same.build((None, 2, None, 6), (None, 2, None, 6))
    np.testing.assert_array_equal(same.projections, group.projections)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_buckets": 1}, "num_buckets must be at least 2. Received: 1"),
        ({"window_size": 0}, "window_size must be a positive integer. Received: window_size=0"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        HashedHeads(2, **{"num_buckets": 4, "window_size": 4, **options})
