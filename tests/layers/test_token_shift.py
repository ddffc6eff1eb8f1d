import numpy as np
import pytest

from rt_keras.layers import TokenShift
from tests.layers import checks


@pytest.mark.parametrize("width, length", [(4, 1), (5, 6)])
def test_equation(width, length):
    x = checks.random(2, length, width)
    found = TokenShift()(x).numpy()
    assert found.shape == x.shape == TokenShift().compute_output_shape(x.shape)
    half = width // 2
    for t in range(length):
        np.testing.assert_array_equal(found[:, t, :half], x[:, t, :half])
        before = x[:, t - 1, half:] if t else 0
        np.testing.assert_array_equal(
            found[:, t, half:], np.broadcast_to(before, (2, width - half))
        )


@pytest.mark.parametrize("kind", ["left", "right"])
def test_padding_does_not_change_outputs(kind):
    mask = checks.padding(2, 6, kind)
    x = checks.random(2, 6, 4)
    zeros = np.where(mask[..., None], x, 0)
    found = TokenShift()(x, mask=mask).numpy()
    np.testing.assert_array_equal(found[mask], TokenShift()(zeros).numpy()[mask])
