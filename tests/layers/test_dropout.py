import keras
import numpy as np
import pytest

from rt_keras.layers import Dropout

X = np.ones([3, 40, 5], "float32")


@pytest.mark.parametrize("noise_shape", [None, (None, 1, 5)])
def test_dropout_equals_that_of_keras(noise_shape):
    options = {"noise_shape": noise_shape, "seed": 3}
    layers = [kind(0.4, **options) for kind in (Dropout, keras.layers.Dropout)]
    for _ in range(2):
        ours, theirs = (np.asarray(layer(X, training=True)) for layer in layers)
        np.testing.assert_array_equal(ours, theirs)
        assert 0 < (ours == 0).mean() < 1
    np.testing.assert_array_equal(layers[0](X), X)
    np.testing.assert_array_equal(Dropout(0.0)(X, training=True), X)
