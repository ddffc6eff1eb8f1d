import types

import numpy as np
import pytest
import tensorflow as tf

from rt_keras.models.sound_windows import join_windows, windows_of_sounds


@pytest.mark.parametrize("count", [1, 20, 24, 25, 61])
def test_each_position_is_of_the_window_that_has_most_around_it(count):
    preprocessor = types.SimpleNamespace(sequence_length=8, position_samples=3)
    samples = np.arange(1, 3 * count + 1, dtype="float32")[None]
    windows, counts = windows_of_sounds(samples, tf.constant([3 * count]), preprocessor)
    # A window starts every 6 positions, so that it shares one on each side.
    for number, (window, real) in enumerate(zip(windows.numpy(), counts.numpy())):
        expected = np.pad(samples[0], (0, 99))[18 * number : 18 * number + 24]
        np.testing.assert_array_equal(window[0], expected)
        assert real[0] == np.count_nonzero(expected)
    # The first sample of each position takes the place of its logits.
    joined = join_windows(windows[:, :, ::3, None], preprocessor)[0, :, 0].numpy()
    np.testing.assert_array_equal(joined[:count], samples[0, ::3])
    assert not joined[count:].any()


def test_sounds_of_a_batch_have_their_own_lengths():
    preprocessor = types.SimpleNamespace(sequence_length=8, position_samples=1)
    _, counts = windows_of_sounds(tf.ones([2, 14]), tf.constant([14, 3]), preprocessor)
    assert counts.numpy().tolist() == [[8, 3], [8, 0], [2, 0]]
