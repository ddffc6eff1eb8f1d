"""Weights of heads that are drawn once, from a seed, and never trained."""

import numpy as np
import pytest

from rt_keras.layers import ClusteredHeads, LSHHeads


@pytest.mark.parametrize(
    "make, name, shape",
    [
        (lambda **options: LSHHeads(2, 6, 3, num_rounds=4, **options), "rotations", (2, 4, 6, 3)),
        (lambda **options: ClusteredHeads(2, 3, bits=5, **options), "projections", (2, 5, 6)),
    ],
)
def test_they_depend_on_the_seed_and_are_float32(make, name, shape):
    groups = make(seed=3, dtype="mixed_bfloat16"), make(seed=3), make(seed=4)
    for group in groups:
        group.build((1, 2, 9, 6), (1, 2, 9, 6))
    first, same, other = (getattr(group, name) for group in groups)
    assert first.shape == shape and first.dtype == "float32"
    assert not groups[0].trainable_variables
    np.testing.assert_array_equal(first, same)
    assert np.all(first != other)
