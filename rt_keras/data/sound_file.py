"""Reading of sound files."""

import contextlib
from pathlib import Path

import numpy as np

from rt_keras.data import extras
from rt_keras.data.wav import SAMPLING_RATE

# The files that libsndfile reads, by their suffixes.
SUFFIXES = (".wav", ".flac", ".ogg", ".mp3")
# Longer recordings would fill the memory; in seconds.
LONGEST = 3600


def read_sound(path, sampling_rate=SAMPLING_RATE):
    """Reads a sound file, mixed to one channel and resampled.

    Args:
        path: path of a WAV, FLAC, OGG or MP3 file.
        sampling_rate: int, the sampling rate of the result, in Hz. Defaults to 16,000.

    Returns:
        float32 array `[samples]`, from -1 to 1.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is not a sound, has no samples or some that are not finite, or is
            longer than an hour.

    >>> import tempfile
    >>> from rt_keras.data.wav import encode_wav
    >>> path = tempfile.mktemp(suffix=".wav")
    >>> with open(path, "wb") as file:
    ...     _ = file.write(encode_wav(np.zeros(800), 8_000))
    >>> read_sound(path).shape
    (1600,)
    """
    with extras.needed("speech", "Reading sounds"):
        from scipy.signal import resample_poly

    with _opened(path) as file:
        rate = file.samplerate
        samples = file.read(dtype="float32", always_2d=True).mean(axis=1)
    if not np.isfinite(samples).all():
        raise ValueError(f"{path} has samples that are not finite numbers")
    if rate != sampling_rate:
        samples = resample_poly(samples, sampling_rate, rate)
    return np.clip(samples, -1, 1).astype("float32")


def check_sound(path):
    """Raises the errors of `read_sound` that the header of a file shows.

    Args:
        path: path of a sound file.
    """
    with _opened(path):
        pass


@contextlib.contextmanager
def _opened(path):
    """Opens a sound file and checks its length."""
    with extras.needed("speech", "Reading sounds"):
        import soundfile

    try:
        with soundfile.SoundFile(path) as file:
            rate, count = file.samplerate, file.frames
            if not 0 < count <= LONGEST * rate:
                raise ValueError(
                    f"{path} lasts {count / rate:,.1f} seconds; a recording must have samples and "
                    f"last at most {LONGEST:,} seconds"
                )
            yield file
    except soundfile.LibsndfileError as error:
        if error.code == 2 and not Path(path).exists():
            raise FileNotFoundError(f"{path} does not exist") from None
        raise ValueError(f"{path} is not a sound that can be read: {error.error_string}") from None
