import numpy as np
import pytest

from rt_keras.benchmarks.images.pixel_cnn import pixel_cnn


@pytest.mark.parametrize("shape", [(5, 6, 1), (3, 4, 3)])
def test_a_value_sees_all_values_before_it_and_no_others(shape):
    model = pixel_cnn(shape, weights=20_000)
    images = np.random.default_rng(0).integers(256, size=[1, *shape])
    before = model.predict({"images": images}, verbose=0).reshape(-1, 256)
    seen = []
    for place in range(images.size):
        changed = images.copy().ravel()
        changed[place] = 255 - changed[place]
        after = model.predict({"images": changed.reshape(images.shape)}, verbose=0)
        seen.append(np.abs(after.reshape(-1, 256) - before).max(-1) > 0)
    seen = np.array(seen)
    earlier = np.triu(np.ones_like(seen), 1)
    # Small images are within reach of all convolutions.
    np.testing.assert_array_equal(seen, earlier)


def test_weights_are_about_as_many():
    for weights in (30_000, 100_000):
        count = pixel_cnn((4, 4, 1), weights).count_params()
        assert 0.85 * weights < count <= weights
