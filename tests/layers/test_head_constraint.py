import keras
import numpy as np
import pytest

from rt_keras.layers.head_constraint import HeadConstraint
from tests.layers import checks


@pytest.mark.parametrize(
    "shape, axis", [((4, 2, 3), 0), ((4, 2, 3), 1), ((2, 3, 4), 1), ((2, 3, 4), (0, 1))]
)
def test_axes_are_those_of_weights_with_heads(shape, axis):
    constraint = keras.constraints.UnitNorm(axis=axis)
    weights = checks.random(4, 6) if shape[0] == 4 else checks.random(6, 4)
    expected = constraint(np.reshape(weights, shape))
    found = HeadConstraint(constraint, shape)(weights)
    assert found.shape == weights.shape
    np.testing.assert_array_equal(np.reshape(found, shape), expected)


def test_config():
    constraint = HeadConstraint(keras.constraints.MaxNorm(0.5, axis=1), (2, 3, -1))
    other = HeadConstraint.from_config(constraint.get_config())
    weights = checks.random(6, 4)
    np.testing.assert_array_equal(other(weights), constraint(weights))
