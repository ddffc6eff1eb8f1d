import io
import wave

import numpy as np
import pytest
import soundfile
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from rt_keras.data.wav import decode_wavs, encode_wav, resample, wav_samples

RNG = np.random.default_rng(0)
NOT_WAV = "sounds_must_be_wav_files_of_16_bits"


def sine(rate, seconds=0.2, hertz=440.3):
    return np.sin(2 * np.pi * hertz * np.arange(round(rate * seconds)) / rate).astype("float32")


def wave_file(channels, rate=16_000, width=2):
    """Writes int16 samples `[samples, channels]`, or zeros of another width."""
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(channels.shape[1])
        sound.setsampwidth(width)
        sound.setframerate(rate)
        zeros = bytes(channels.size * width)
        sound.writeframes(channels.astype("<i2").tobytes() if width == 2 else zeros)
    return file.getvalue()


def inner(samples):
    """The middle half: a spectrum continues a sound periodically, whose jump rings at its ends."""
    return samples[len(samples) // 4 : -len(samples) // 4]


@given(st.lists(st.integers(-(2**15), 2**15 - 1), max_size=20), st.sampled_from([8000, 44_100]))
def test_samples_come_back_as_they_were(numbers, rate):
    sound = encode_wav(np.array(numbers) / 2**15, rate)
    assert wav_samples(sound).tolist() == numbers
    with wave.open(io.BytesIO(sound)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (rate, 1, 2)


def test_samples_out_of_range_are_cut():
    found = wav_samples(encode_wav([-3.0, -1.0, 1.0, 3.0, 1e-6], 16_000))
    assert found.dtype == "int16"
    assert found.tolist() == [-(2**15), -(2**15), 2**15 - 1, 2**15 - 1, 0]


def test_sounds_of_several_lengths_are_padded():
    sounds = [RNG.uniform(-1, 1, count).astype("float32") for count in (5, 0, 9)]
    samples, counts = decode_wavs([*(encode_wav(sound, 16_000) for sound in sounds), b""])
    assert samples.shape == (4, 9) and samples.dtype == tf.float32
    assert counts.dtype == tf.int32 and counts.numpy().tolist() == [5, 0, 9, 0]
    for row, sound in zip(samples.numpy(), sounds):
        # Half a step of 16 bits.
        np.testing.assert_allclose(row[: len(sound)], sound, rtol=0, atol=0.5 / 2**15 + 1e-7)
        assert not np.any(row[len(sound) :])


@pytest.mark.parametrize("sounds", [[b"", b""], tf.zeros([0], tf.string)])
def test_no_sound_at_all(sounds):
    samples, counts = decode_wavs(sounds)
    assert samples.shape == (len(sounds), 0)
    assert counts.numpy().tolist() == [0] * len(sounds)


def test_channels_are_averaged():
    channels = RNG.integers(-(2**15), 2**15, [7, 3])
    (samples,), _ = decode_wavs([wave_file(channels)])
    np.testing.assert_allclose(samples, channels.mean(axis=1) / 2**15, rtol=0, atol=1e-6)


@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100, 48_000])
def test_other_sampling_rates_are_resampled(rate):
    (samples,), (count,) = decode_wavs([encode_wav(sine(rate), rate)])
    expected = sine(16_000)
    assert count == len(expected)
    # The ringing has faded to less than 0.001.
    np.testing.assert_allclose(inner(samples), inner(expected), rtol=0, atol=1e-3)


def test_frequencies_that_the_new_rate_cannot_hold_are_left_out():
    low, high = sine(44_100, hertz=400), sine(44_100, hertz=12_000)
    found = resample(tf.constant(low + high), 44_100, 16_000)
    # Whole numbers of periods: only the rounding of float32 is left.
    np.testing.assert_allclose(found, sine(16_000, hertz=400), rtol=0, atol=1e-5)


@pytest.mark.parametrize("count", [8, 9, 441, 450])
@pytest.mark.parametrize("rate", [8_000, 44_100])
def test_a_batch_is_resampled_as_each_row_is(rate, count):
    rows = tf.constant(RNG.normal(size=[2, 3, count]), tf.float32)
    found = resample(rows, rate, 16_000)
    assert found.shape == (2, 3, count * 16_000 // rate)
    for place in np.ndindex(2, 3):
        np.testing.assert_allclose(found[place], resample(rows[place], rate, 16_000), atol=1e-5)


def test_the_sampling_rate_of_the_result_is_a_choice():
    sound = encode_wav(sine(16_000, hertz=440), 16_000)
    (samples,), _ = decode_wavs([sound], sampling_rate=8_000)
    np.testing.assert_allclose(samples, sine(8_000, hertz=440), rtol=0, atol=1e-4)


@pytest.mark.parametrize("rate, count", [(8_000, 0), (44_100, 1), (44_100, 2)])
def test_sounds_too_short_for_a_sample_are_empty(rate, count):
    samples, counts = decode_wavs([encode_wav(np.zeros(count), rate)])
    assert samples.shape == (1, 0) and counts.numpy().tolist() == [0]


@pytest.mark.parametrize("sound", [b"no sound", wave_file(np.zeros([4, 1]))[:20]])
def test_what_is_no_wav_file_is_an_error(sound):
    with pytest.raises(tf.errors.InvalidArgumentError, match=NOT_WAV):
        decode_wavs([wave_file(np.zeros([4, 1])), sound])


def test_the_extensible_format():
    file = io.BytesIO()
    numbers = RNG.integers(-(2**15), 2**15, [50, 2], "int16")
    soundfile.write(file, numbers, 16_000, format="WAVEX", subtype="PCM_16")
    (samples,), (count,) = decode_wavs([file.getvalue()])
    assert count == 50
    np.testing.assert_allclose(samples, numbers.mean(axis=1) / 2**15, rtol=0, atol=1e-6)


@pytest.mark.parametrize("subtype", ["FLOAT", "PCM_24"])
def test_the_extensible_format_of_other_numbers_is_an_error(subtype):
    file = io.BytesIO()
    soundfile.write(file, np.zeros(50), 16_000, format="WAVEX", subtype=subtype)
    with pytest.raises(tf.errors.InvalidArgumentError, match=NOT_WAV):
        decode_wavs([file.getvalue()])


@pytest.mark.parametrize("width", [1, 3, 4])
def test_other_numbers_of_bits_are_an_error(width):
    with pytest.raises(tf.errors.InvalidArgumentError, match=NOT_WAV):
        decode_wavs([wave_file(np.zeros([4, 1]), width=width)])


def test_a_sampling_rate_of_0_is_an_error():
    sound = bytearray(encode_wav(np.zeros(4), 16_000))
    sound[24:28] = bytes(4)
    with pytest.raises(tf.errors.InvalidArgumentError):
        decode_wavs([bytes(sound)])


def test_in_a_pipeline_and_in_a_function():
    sounds = [encode_wav(sine(8_000, 0.01), 8_000), b"", encode_wav(sine(16_000, 0.02), 16_000)]
    expected = decode_wavs(sounds)
    (found,) = tf.data.Dataset.from_tensor_slices(sounds).batch(3).map(decode_wavs)
    function = tf.function(decode_wavs, input_signature=[tf.TensorSpec([None], tf.string)])
    for results in (found, function(tf.constant(sounds))):
        for x, y in zip(results, expected):
            np.testing.assert_allclose(x, y, rtol=0, atol=1e-6)


def test_an_error_in_a_pipeline_names_what_is_wrong():
    batches = tf.data.Dataset.from_tensors([b"no sound"]).map(decode_wavs)
    with pytest.raises(tf.errors.InvalidArgumentError, match=NOT_WAV):
        list(batches)
