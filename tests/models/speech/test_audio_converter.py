import math

import numpy as np
import pytest
import tensorflow as tf

from rt_keras.models import RoutingTransformerAudioConverter
from tests.layers.checks import close

RNG = np.random.default_rng(0)


def noise(*shape):
    return RNG.uniform(-1, 1, shape).astype("float32")


def mel(hertz):
    """The scale of the Hidden Markov Model Toolkit."""
    return 1127 * math.log(1 + hertz / 700)


def mel_weights(bins):
    """Triangles between equally spaced mels from 20 Hz to 8 kHz, `[frequencies, bins]`."""
    edges = np.linspace(mel(20), mel(8000), bins + 2)
    weights = np.zeros([257, bins])
    # The constant part is in no filter.
    for k in range(1, 257):
        here = mel(k * 16_000 / 512)
        for i, (low, middle, high) in enumerate(zip(edges, edges[1:], edges[2:])):
            rising, falling = (here - low) / (middle - low), (high - here) / (high - middle)
            weights[k, i] = max(0, min(rising, falling))
    return weights


def frames_of(samples, bins):
    """Features of one sound, frame by frame in float64."""
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    count = -(-len(samples) // 160)
    padded = np.pad(samples.astype("float64"), (0, 400))
    energies = [
        np.abs(np.fft.rfft(window * padded[160 * t : 160 * t + 400], 512)) ** 2
        for t in range(count)
    ]
    return np.log(np.maximum(np.array(energies) @ mel_weights(bins), 1e-6))


@pytest.mark.parametrize("count", [1, 160, 161, 2311])
def test_features_are_those_of_a_loop_over_frames(count):
    samples = noise(count)
    (features,), (mask,) = RoutingTransformerAudioConverter(20)(samples[None])
    expected = frames_of(samples, 20)
    expected -= expected.mean(axis=0)
    # Sums of 257 energies in float32, and their logarithm.
    close(features, expected / np.sqrt(expected.var(axis=0) + 1e-5), 1e-2)
    assert features.shape == (-(-count // 160), 20) and np.all(mask)


def test_padding_changes_no_frame():
    converter = RoutingTransformerAudioConverter(8)
    counts = np.array([1000, 1601, 0, 2400])
    samples = np.zeros([4, 2400], "float32")
    for row, count in zip(samples, counts):
        row[:count] = noise(count)
    features, mask = converter(samples, counts=counts)
    assert features.shape == (4, 15, 8) and features.dtype == tf.float32
    for row, found, real, count in zip(samples, features, mask, counts):
        frames = -(-count // 160)
        assert np.all(real[:frames]) and not np.any(real[frames:])
        assert not np.any(found[frames:])
        if count:
            close(found[:frames], converter(row[None, :count])[0][0], 1e-5)


def test_bad_arguments():
    message = "num_mel_bins must be a positive integer. Received: num_mel_bins=0"
    with pytest.raises(ValueError, match=message):
        RoutingTransformerAudioConverter(0)
