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
        ("a.wav", {}, 1e-4),
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


@pytest.mark.parametrize("rate", [8_000, 44_100])
def test_other_sampling_rates_are_resampled(rate, tmp_path):
    times = np.arange(rate // 10) / rate
    path = write_sound(tmp_path / "a.flac", 0.5 * np.sin(2 * np.pi * 400 * times), rate)
    found = read_sound(path)
    assert found.shape == (1600,)
    # A filter of finite length, which meets silence at both ends.
    np.testing.assert_allclose(found[200:-200], SINE[200:-200], rtol=0, atol=0.01)


def test_loud_sounds_are_cut(tmp_path):
    path = write_sound(tmp_path / "a.wav", 4 * SINE, subtype="FLOAT")
    found = read_sound(path)
    assert (found.min(), found.max()) == (-1, 1)


@pytest.mark.parametrize("as_string", [False, True])
def test_a_sound_that_does_not_exist(as_string, tmp_path):
    path = str(tmp_path / "a.wav") if as_string else tmp_path / "a.wav"
    with pytest.raises(FileNotFoundError, match="a.wav does not exist"):
        read_sound(path)


def test_a_sound_without_samples(tmp_path):
    with pytest.raises(ValueError, match="a.wav lasts 0.0 seconds; a recording must have samples"):
        read_sound(write_sound(tmp_path / "a.wav", np.zeros(0)))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_samples_that_are_no_numbers(value, tmp_path):
    path = write_sound(tmp_path / "a.wav", np.append(SINE, value), subtype="FLOAT")
    with pytest.raises(ValueError, match="a.wav has samples that are not finite numbers"):
        read_sound(path)


def test_a_header_shows_most_of_what_is_wrong(tmp_path):
    check_sound(write_sound(tmp_path / "a.wav"))
    with pytest.raises(ValueError, match="b.wav lasts 0.0 seconds"):
        check_sound(write_sound(tmp_path / "b.wav", np.zeros(0)))
    with pytest.raises(FileNotFoundError, match="c.wav does not exist"):
        check_sound(tmp_path / "c.wav")


def test_a_sound_that_is_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr(sound_file, "LONGEST", 1)
    read_sound(write_sound(tmp_path / "a.wav", np.zeros(800), 800))
    with pytest.raises(ValueError, match="b.wav lasts 2.5 seconds; .* last at most 1 seconds"):
        read_sound(write_sound(tmp_path / "b.wav", np.zeros(2000), 800))
