"""WAV files as tensors: the form in which sounds are packed, served and sent."""

import io
import wave

import numpy as np
import tensorflow as tf

# Of all models of speech, in Hz.
SAMPLING_RATE = 16_000
# Of a sound that is decoded: a small file of 1 Hz would fill the memory.
LOWEST_RATE = 1_000


def encode_wav(samples, sampling_rate):
    """Returns the bytes of a WAV file of one channel and 16 bits.

    Args:
        samples: float array `[samples]`, from -1 to 1.
        sampling_rate: int, in Hz.

    Returns:
        Bytes.

    >>> len(encode_wav([0.0, 0.5], 16_000))
    48
    """
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(sampling_rate)
        numbers = np.round(np.asarray(samples, np.float64) * 2**15)
        sound.writeframes(np.clip(numbers, -(2**15), 2**15 - 1).astype("<i2").tobytes())
    return file.getvalue()


def wav_samples(sound):
    """Returns the samples of a WAV file of one channel and 16 bits.

    Args:
        sound: bytes, as from `encode_wav`.

    Returns:
        int16 array `[samples]`.

    >>> wav_samples(encode_wav([0.0, 0.5], 16_000)).tolist()
    [0, 16384]
    """
    with wave.open(io.BytesIO(sound)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2")


def decode_wavs(sounds, sampling_rate=SAMPLING_RATE):
    """Decodes a batch of WAV files in TensorFlow operations.

    Args:
        sounds: strings `[batch]`, the bytes of WAV files of 16 bits and any number of channels,
            which are averaged, and any sampling rate; an empty string stands for no sound.
        sampling_rate: int, the sampling rate of the result, in Hz. Defaults to 16,000.

    Returns:
        float32 `[batch, samples]`, padded with zeros; and int32 `[batch]`, their numbers of
        samples.

    Raises:
        tf.errors.InvalidArgumentError: if a string is no WAV file of 16 bits, or its sampling rate
            is below 1,000 Hz.

    >>> samples, counts = decode_wavs([encode_wav([0.0, 0.5], 16_000), b""])
    >>> samples.numpy().tolist(), counts.numpy().tolist()
    ([[0.0, 0.5], [0.0, 0.0]], [2, 0])
    """

    def decode(sound):
        def read():
            file = _with_plain_header(sound)
            samples, rate = tf.audio.decode_wav(file, name="sounds_must_be_wav_files_of_16_bits")
            message = f"the sampling rate of a sound must be at least {LOWEST_RATE:,} Hz"
            check = tf.debugging.assert_greater_equal(rate, LOWEST_RATE, message)
            with tf.control_dependencies([check]):
                rate = tf.identity(rate)
            return resample(tf.reduce_mean(samples, axis=1), rate, sampling_rate)

        return tf.cond(tf.equal(sound, ""), lambda: tf.zeros([0]), read)

    spec = tf.RaggedTensorSpec([None], tf.float32, ragged_rank=0)
    decoded = tf.map_fn(decode, tf.convert_to_tensor(sounds), fn_output_signature=spec)
    return decoded.to_tensor(), tf.cast(decoded.row_lengths(), tf.int32)


def _with_plain_header(sound):
    """Shortens the header of a WAV file in the extensible format, which TensorFlow cannot read."""
    # The short header, 20 bytes, then the numbers of both, 14 bytes, and what is in the long one.
    padded = tf.strings.join([sound, bytes(60)])
    extensible = tf.equal(tf.strings.substr(padded, 12, 10), b"fmt \x28\0\0\0\xfe\xff")
    extensible &= tf.equal(tf.strings.substr(padded, 44, 2), b"\1\0")

    def plain():
        parts = [(0, 16), (22, 14), (60, 2**31 - 1)]
        riff, numbers, rest = (tf.strings.substr(sound, *part) for part in parts)
        return tf.strings.join([riff, b"\x10\0\0\0\1\0", numbers, rest])

    return tf.cond(extensible, plain, lambda: tf.convert_to_tensor(sound))


def resample(samples, rate, sampling_rate):
    """Changes the sampling rate of a sound, by cutting or extending its spectrum.

    Args:
        samples: float32 `[..., samples]`.
        rate: int or int tensor, its sampling rate, in Hz.
        sampling_rate: int, the new one.

    Returns:
        float32 `[..., samples * sampling_rate / rate]`, rounded down.

    >>> resample(tf.zeros([441]), 44_100, 16_000).shape
    TensorShape([160])
    """

    samples = tf.convert_to_tensor(samples)
    count = tf.shape(samples, tf.int64)[-1]
    new = count * sampling_rate // tf.cast(rate, tf.int64)

    def change():
        bins = new // 2 + 1
        spectrum = tf.signal.rfft(samples)[..., :bins]
        more = bins - tf.shape(spectrum, tf.int64)[-1]
        spectrum = tf.pad(spectrum, [[0, 0]] * (samples.shape.rank - 1) + [[0, more]])
        changed = tf.signal.irfft(spectrum, fft_length=[tf.cast(new, tf.int32)])
        return changed * tf.cast(new / count, tf.float32)

    # There is no spectrum of no samples.
    same = tf.equal(rate, sampling_rate) | tf.equal(new, 0)
    return tf.cond(same, lambda: samples[..., :new], change)
