import math

import numpy as np
import pytest

from rt_keras.layers import FeedForward
from tests.layers import checks


def gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))


def approximate_gelu(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


EQUATIONS = {
    "relu": (lambda x: np.maximum(x, 0), 1e-12),
    # Keras's gelu uses a float32 square root of 2.
    "gelu": (gelu, 1e-6),
    "geglu": (lambda x: gelu(x[..., :7]) * x[..., 7:], 1e-6),
    "geglu_approximate": (lambda x: approximate_gelu(x[..., :7]) * x[..., 7:], 1e-6),
}


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("activation", EQUATIONS)
def test_equation(activation, use_bias):
    options = {"activation": activation, "use_bias": use_bias, "kernel_initializer": "he_normal"}
    layer = FeedForward(7, dropout=0.2, dtype="float64", **options)
    x = checks.random(2, 3, 4, dtype="float64")
    layer.build(x.shape)
    rng = np.random.default_rng(1)
    layer.set_weights([rng.normal(size=weight.shape) for weight in layer.weights])
    weights = layer.get_weights()
    first, second = weights[0], weights[-2 if use_bias else -1]
    assert first.shape == (4, 14 if activation.startswith("geglu") else 7)
    of_first, of_second = weights[1::2] if use_bias else (0, 0)
    function, tolerance = EQUATIONS[activation]
    expected = function(x @ first + of_first) @ second + of_second
    np.testing.assert_allclose(layer(x), expected, rtol=0, atol=tolerance)
    checks.config_makes_an_equal_layer(layer, x)


def test_the_two_layers_have_different_initial_values():
    layer = FeedForward(4, "relu", kernel_initializer="he_normal")
    layer.build((None, None, 4))
    first, _, second, _ = layer.get_weights()
    assert first.shape == second.shape
    assert np.any(first != second)


def test_dropout_only_in_training():
    layer = FeedForward(64, dropout=0.5)
    x = checks.random(2, 3, 4)
    np.testing.assert_array_equal(layer(x), layer(x, training=False))
    assert checks.largest_difference(layer(x, training=True), layer(x)) > 1e-3
    checks.trains_every_weight(layer, x, training=True)
