import numpy as np
import pytest
import soundfile

from rt_keras.data import sound_file
from rt_keras.data.sound_file import check_sound, read_sound

SINE = 0.5 * np.sin(2 * np.pi * 400 * np.arange(1600) / 16_000)


def write_sound(path, samples=SINE, rate=16_000, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, samples, rate, **options)
    return path


@pytest.mark.parametrize(
    "name, options, tolerance",
    [
        ("a.wav", {"subtype": "PCM_24"}, 1e-4),
        ("a.wav", {"subtype": "FLOAT"}, 1e-6),
        ("a.flac", {}, 1e-4),
        # A lossy format.
        ("a.ogg", {}, 0.1),
    ],
)
def test_formats(name, options, tolerance, tmp_path):
    found = read_sound(write_sound(tmp_path / name, **options))
    assert found.dtype == "float32"
    np.testing.assert_allclose(found, SINE, rtol=0, atol=tolerance)


def test_channels_are_averaged(tmp_path):
    path = write_sound(tmp_path / "a.wav", np.stack([SINE, np.zeros(1600)], axis=1))
    np.testing.assert_allclose(read_sound(path), SINE / 2, rtol=0, atol=1e-4)


def test_other_sampling_rates_are_resampled(tmp_path):
    sine = 0.5 * np.sin(2 * np.pi * 400 * np.arange(4410) / 44_100)
    found = read_sound(write_sound(tmp_path / "a.flac", sine, 44_100))
    assert found.shape == (1600,)
    # A filter of finite length, which meets silence at both ends.
    np.testing.assert_allclose(found[200:-200], SINE[200:-200], rtol=0, atol=0.01)


def test_loud_sounds_are_cut_and_samples_must_be_numbers(tmp_path):
    path = write_sound(tmp_path / "a.wav", 4 * SINE, subtype="FLOAT")
    found = read_sound(path)
    assert (found.min(), found.max()) == (-1, 1)
    write_sound(path, np.append(SINE, np.nan), subtype="FLOAT")
    with pytest.raises(ValueError, match="a.wav has samples that are not finite numbers"):
        read_sound(path)


@pytest.mark.parametrize("read", [check_sound, read_sound])
def test_sounds_that_are_missing_empty_or_too_long(read, tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="c.wav does not exist"):
        read(str(tmp_path / "c.wav"))
    with pytest.raises(ValueError, match="b.wav lasts 0.0 seconds; a recording must have samples"):
        read(write_sound(tmp_path / "b.wav", np.zeros(0)))
    monkeypatch.setattr(sound_file, "LONGEST", 1)
    read(write_sound(tmp_path / "a.wav", np.zeros(800), 800))
    with pytest.raises(ValueError, match="b.wav lasts 2.5 seconds; .* last at most 1 seconds"):
        read(write_sound(tmp_path / "b.wav", np.zeros(2000), 800))
