import types

import numpy as np
import pytest
import tensorflow as tf

from rt_keras.models.speech.sound_windows import join_windows, windows_of_sounds


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
    joined = join_windows(windows[:, :, ::3, None], tf.constant([3 * count]), preprocessor)
    joined = joined[0, :, 0].numpy()
    np.testing.assert_array_equal(joined[:count], samples[0, ::3])
    assert not joined[count:].any()


def test_sounds_of_a_batch_have_their_own_lengths():
    preprocessor = types.SimpleNamespace(sequence_length=8, position_samples=1)
    _, counts = windows_of_sounds(tf.ones([2, 14]), tf.constant([14, 3]), preprocessor)
    assert counts.numpy().tolist() == [[8, 3], [8, 0], [2, 0]]


@pytest.mark.parametrize("count", [1, 7, 8, 9, 13])
def test_a_sound_that_a_window_holds_has_the_logits_of_that_window(count):
    preprocessor = types.SimpleNamespace(sequence_length=8, position_samples=1)
    counts = tf.constant([20, count])
    windows, _ = windows_of_sounds(tf.ones([2, 20]), counts, preprocessor)
    # The logits of a window are its number.
    numbers = tf.ones_like(windows)[..., None] * tf.range(4.0)[:, None, None, None]
    joined = join_windows(numbers, counts, preprocessor)[:, :, 0].numpy()
    expected = [0] * 7 + [1] * 6 + [2] * 6 + [3]
    np.testing.assert_array_equal(joined[0, :20], expected)
    np.testing.assert_array_equal(
        joined[1, :count], [0] * count if count <= 8 else expected[:count]
    )
