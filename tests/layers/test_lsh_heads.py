import numpy as np
import pytest

from rt_keras.layers import LSHHeads
from tests.layers import checks


def test_rotations_are_drawn_from_the_seed_and_stay():
    group = LSHHeads(2, 6, 3, num_rounds=4, seed=3, dtype="mixed_bfloat16")
    x = checks.random(1, 2, 9, 6)
    assert group(x, x).dtype == "bfloat16"
    assert group.rotations.shape == (2, 4, 6, 3) and group.rotations.dtype == "float32"
    assert not group.trainable_variables
    same = LSHHeads(2, 6, 3, num_rounds=4, seed=3)
    same.build(x.shape, x.shape)
    np.testing.assert_array_equal(same.rotations, group.rotations)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_buckets": 5}, "num_buckets must be even. Received: num_buckets=5"),
        ({"num_rounds": 0}, "num_rounds must be a positive integer. Received: num_rounds=0"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        LSHHeads(2, **{"num_buckets": 4, "block_size": 3, **options})
