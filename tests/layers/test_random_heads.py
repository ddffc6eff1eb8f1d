import numpy as np

from rt_keras.layers import RandomHeads
from tests.layers import checks


def test_members_depend_only_on_the_seed():
    x = checks.random(1, 2, 20, 6)
    found, same, other = (RandomHeads(2, 3, 4, seed=seed)(x, x, x) for seed in (1, 1, 2))
    np.testing.assert_array_equal(found, same)
    assert checks.largest_difference(found, other) > 1e-2
