import json

import numpy as np
import pytest
import soundfile

from tests.models.speech.test_speech_recognizer import make_model

CHIRP = 0.5 * np.sin(np.arange(24_000, dtype="float32") ** 2 / 2e4)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    make_model().save_to_preset(folder)
    return folder


@pytest.fixture
def sounds(tmp_path):
    """Two files, of which one has another rate."""
    soundfile.write(tmp_path / "a.flac", CHIRP, 16_000)
    soundfile.write(tmp_path / "b.wav", CHIRP, 8_000)
    return tmp_path / "a.flac", tmp_path / "b.wav"


@pytest.mark.slow
def test_each_file_has_a_line(run, saved, sounds, tmp_path):
    command = ["transcribe", "--model", saved, *sounds, "--json", tmp_path / "texts.json"]
    status, output, _ = run(*command)
    texts = json.loads((tmp_path / "texts.json").read_text())["texts"]
    assert status == 0 and list(texts) == [str(sound) for sound in sounds]
    assert all(f"{sound}: {texts[str(sound)]}\n" in output for sound in sounds)
    assert run("transcribe", "--model", saved, sounds[0], "--beam-width", 4)[0] == 0
