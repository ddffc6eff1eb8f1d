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


def test_it_is_saved_and_loaded(tmp_path):
    model = keras.Sequential([keras.Input(X.shape[1:]), Dropout(0.4, seed=3, name="drop")])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.get_layer("drop")) is Dropout
    np.testing.assert_array_equal(loaded(X, training=True), model(X, training=True))
    assert Dropout(0.4).compute_output_shape(X.shape) == X.shape
