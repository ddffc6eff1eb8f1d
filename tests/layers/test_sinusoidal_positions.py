import math

import keras
import numpy as np
import pytest

from rt_keras.layers import SinusoidalPositions
from tests.layers import checks


@pytest.mark.parametrize("width, max_wavelength", [(2, 50), (3, 10_000), (8, 50), (9, 10_000)])
def test_equation(width, max_wavelength):
    x = checks.random(2, 7, width)
    layer = SinusoidalPositions(max_wavelength)
    expected = x.astype("float64")
    half = width // 2
    for t, i in np.ndindex(7, half):
        frequency = max_wavelength ** (-i / (half - 1)) if half > 1 else 1.0
        expected[:, t, i] += math.sin(t * frequency)
        expected[:, t, half + i] += math.cos(t * frequency)
    np.testing.assert_allclose(layer(x), expected, rtol=0, atol=1e-5)
    assert layer.compute_output_shape(x.shape) == x.shape


def test_mixed_bfloat16():
    x = np.zeros((1, 300, 6), "float32")
    found = SinusoidalPositions(dtype="mixed_bfloat16")(x)
    assert found.dtype == "bfloat16"
    # bfloat16 cannot represent all positions above 256, so angles must be float32.
    exact = SinusoidalPositions()(x)
    assert checks.largest_difference(keras.ops.cast(found, "float32"), exact) < 0.005


def test_start_at_a_later_position():
    x, layer = checks.random(2, 7, 8), SinusoidalPositions()
    np.testing.assert_allclose(layer(x[:, 3:], start=3), layer(x)[:, 3:], rtol=0, atol=1e-6)
