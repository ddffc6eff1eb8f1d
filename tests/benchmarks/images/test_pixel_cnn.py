import keras
import numpy as np
import pytest

from rt_keras.benchmarks.images.pixel_cnn import pixel_cnn


@pytest.fixture
def float64():
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_dtype_policy(policy)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "shape", [(3, 4, 3), pytest.param((5, 6, 1), marks=pytest.mark.end_to_end)]
)
def test_a_value_sees_all_values_before_it_and_no_others(shape):
    keras.utils.set_random_seed(0)
    model = pixel_cnn(shape, weights=20_000)
    images = np.random.default_rng(0).integers(256, size=[4, *shape])
    before = model.predict({"images": images}, verbose=0)
    seen = []
    for place in np.ndindex(shape):
        changed = images.copy()
        changed[:, *place] = 255 - changed[:, *place]
        after = model.predict({"images": changed}, verbose=0)
        # In one image, a ReLU may hide what a value sees.
        seen.append((after != before).any((0, -1)).ravel())
    # Small images are within reach of all convolutions.
    np.testing.assert_array_equal(seen, np.triu(np.ones([len(seen)] * 2, bool), 1))


def test_weights_are_about_as_many():
    for weights in (30_000, 100_000):
        count = pixel_cnn((4, 4, 1), weights).count_params()
        assert 0.85 * weights < count <= weights
