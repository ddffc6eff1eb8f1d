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


def sine(rate, seconds=0.2, hertz=440):
    return np.sin(2 * np.pi * hertz * np.arange(round(rate * seconds)) / rate).astype("float32")


def wave_file(width):
    """Zeros of a number of bytes each."""
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((1, width, 16_000, 0, "NONE", ""))
        sound.writeframes(bytes(4 * width))
    return file.getvalue()


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


@pytest.mark.parametrize("rate, new", [(8_000, 16_000), (22_050, 16_000), (48_000, 8_000)])
def test_other_sampling_rates_are_resampled(rate, new):
    (samples,), (count,) = decode_wavs([encode_wav(0.9 * sine(rate), rate)], sampling_rate=new)
    assert count == new // 5
    # Whole numbers of periods: only the rounding to 16 bits is left.
    np.testing.assert_allclose(samples, 0.9 * sine(new), rtol=0, atol=1e-4)


def test_frequencies_that_the_new_rate_cannot_hold_are_left_out():
    low, high = sine(44_100, hertz=400), sine(44_100, hertz=12_000)
    found = resample(tf.constant(low + high), 44_100, 16_000)
    np.testing.assert_allclose(found, sine(16_000, hertz=400), rtol=0, atol=1e-5)


@pytest.mark.parametrize("rate, count", [(8_000, 0), (44_100, 1), (44_100, 2)])
def test_sounds_too_short_for_a_sample_are_empty(rate, count):
    samples, counts = decode_wavs([encode_wav(np.zeros(count), rate), b""])
    assert samples.shape == (2, 0) and counts.numpy().tolist() == [0, 0]
    samples, counts = decode_wavs(tf.zeros([0], tf.string))
    assert samples.shape == (0, 0) and counts.shape == [0]


@pytest.mark.parametrize("kind", ["WAV", "WAVEX"])
def test_channels_are_averaged_in_the_extensible_format_too(kind):
    file, numbers = io.BytesIO(), RNG.integers(-(2**15), 2**15, [50, 3], "int16")
    soundfile.write(file, numbers, 16_000, format=kind, subtype="PCM_16")
    (samples,), (count,) = decode_wavs([file.getvalue()])
    assert count == 50
    np.testing.assert_allclose(samples, numbers.mean(axis=1) / 2**15, rtol=0, atol=1e-6)


def wavex(subtype):
    file = io.BytesIO()
    soundfile.write(file, np.zeros(50), 16_000, format="WAVEX", subtype=subtype)
    return file.getvalue()


@pytest.mark.parametrize(
    "sound",
    [b"no sound", wave_file(2)[:20], wave_file(1), wave_file(3), wavex("FLOAT"), wavex("PCM_24")],
)
def test_what_is_no_wav_file_of_16_bits_is_an_error(sound):
    with pytest.raises(tf.errors.InvalidArgumentError, match=NOT_WAV):
        decode_wavs([wave_file(2), sound])


def test_a_rate_of_0_is_an_error_in_a_pipeline_too():
    silent = bytearray(wave_file(2))
    silent[24:28] = bytes(4)
    for sound in (bytes(silent), b"no sound"):
        with pytest.raises(tf.errors.InvalidArgumentError):
            list(tf.data.Dataset.from_tensors([sound]).map(decode_wavs))
