import keras
import numpy as np
import pytest

from rt_keras import layers
from rt_keras.keras_internals import mask_of
from tests.layers import checks

LAYERS = [
    layers.FeedForward(8),
    layers.SinusoidalPositions(100),
    layers.TokenShift(),
    layers.TransformerBlock([layers.LocalHeads(2, 3)], 8),
]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
def test_shape_mask_and_config(layer):
    inputs = keras.Input([7, 4])
    outputs = layer(keras.layers.Masking()(inputs))
    assert outputs.shape == inputs.shape == layer.compute_output_shape(inputs.shape)
    x = np.array(checks.random(2, 7, 4))
    x[1, 4:] = 0
    found = layer(keras.layers.Masking()(x))
    np.testing.assert_array_equal(mask_of(found), np.any(x != 0, axis=2))
    again = type(layer).from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
