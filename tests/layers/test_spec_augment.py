import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import SpecAugment

X = np.ones([4, 50, 20], "float32")


def widths(layer):
    """Returns the numbers of masked frames and of masked bins of each example."""
    kept = layer(X, training=True).numpy() != 0
    frames, bins = kept.any(axis=2), kept.any(axis=1)
    # Every value is kept unless its frame or its bin is masked.
    np.testing.assert_array_equal(kept, frames[:, :, None] & bins[:, None])
    return np.sum(~frames, axis=1), np.sum(~bins, axis=1)


def runs(row):
    """Returns the number of runs of True."""
    return int(row[0]) + np.sum(row[1:] & ~row[:-1])


def test_there_are_no_masks_outside_training():
    layer = SpecAugment(seed=1)
    np.testing.assert_array_equal(layer(X), X)
    np.testing.assert_array_equal(layer(X, training=False), X)
    assert np.any(layer(X, training=True) == 0)


def test_every_width_up_to_the_maximum_occurs():
    of_frames, of_bins = SpecAugment(0, 9, 1, 5, seed=1), SpecAugment(1, 3, 0, 9, seed=1)
    frames, bins = (np.array([widths(layer) for _ in range(25)]) for layer in (of_frames, of_bins))
    # 100 examples: each of 6 widths is left out with a probability of 1e-8.
    assert set(frames[:, 0].flat) == set(range(6)) and not np.any(frames[:, 1])
    assert set(bins[:, 1].flat) == set(range(4)) and not np.any(bins[:, 0])


def test_masks_are_stretches_anywhere_from_the_first_to_the_last_frame():
    layer, x = SpecAugment(0, 0, 1, 5, seed=1), X[:, :10]
    masked = np.concatenate([layer(x, training=True)[:, :, 0] == 0 for _ in range(25)])
    assert {runs(row) for row in masked} == {0, 1}
    # Even the first frame is masked with a probability of 0.1 in each of 100 examples.
    assert np.all(np.any(masked, axis=0))


def test_masks_wider_than_a_sound_fit_into_it():
    layer = SpecAugment(0, 0, 1, 1000, seed=0)
    found = layer(X, training=True).numpy()
    assert np.any(np.all(found == 0, axis=(1, 2)))


def test_compiled_for_any_shape():
    layer = SpecAugment(0, 0, 1, 20, seed=1)
    spec = [tf.TensorSpec([None, None, None])]
    step = tf.function(lambda x: layer(x, training=True), input_signature=spec, jit_compile=True)
    # XLA has random numbers of its own.
    masked = np.concatenate([step(X)[:, :, 0] == 0 for _ in range(5)])
    assert {runs(row) for row in masked} <= {0, 1}
    assert 0 < np.max(np.sum(masked, axis=1)) <= 20
    # Each example has its own.
    assert len({row.tobytes() for row in masked}) > 10


@pytest.mark.parametrize("name, value", [("frequency_masks", -1), ("time_mask_width", 1.5)])
def test_bad_arguments(name, value):
    with pytest.raises(ValueError, match=f"{name} must be an integer of at least 0"):
        SpecAugment(**{name: value})
