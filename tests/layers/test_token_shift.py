import keras
import numpy as np
import pytest

from rt_keras.layers import TokenShift
from tests.layers import checks


@pytest.mark.parametrize("width", [4, 5])
@pytest.mark.parametrize("length", [1, 2, 6])
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


def test_mask_passes():
    tokens = keras.layers.Embedding(5, 4, mask_zero=True)(np.array([[1, 0]]))
    assert checks.mask_of(TokenShift()(tokens)) == [[True, False]]


def test_unknown_length_and_config():
    layer = TokenShift(name="shift")
    inputs = keras.Input((None, 4))
    model = keras.Model(inputs, layer(inputs))
    x = checks.random(2, 5, 4)
    np.testing.assert_array_equal(model(x), layer(x))
    checks.config_makes_an_equal_layer(layer, x)


@pytest.mark.parametrize("count", [0, 1, 4])
def test_one_position_at_a_time(count):
    x, layer = checks.random(2, 6, 5), TokenShift()
    expected = layer(x)
    cache = layer.make_cache(x, count)
    for position in range(count, 6):
        output, cache = layer.call_with_cache(x[:, position, None], cache)
        np.testing.assert_array_equal(output[:, 0], expected[:, position])


def test_a_sequence_without_positions():
    assert TokenShift()(np.zeros([2, 0, 4], "float32"), mask=np.ones([2, 0])).shape == (2, 0, 4)
