import json

import numpy as np
import pytest

from tests.data.test_sound_file import write_sound
from tests.models.speech.test_speech_recognizer import make_model

CHIRP = 0.5 * np.sin(np.arange(24_000, dtype="float32") ** 2 / 2e4)


@pytest.mark.slow
def test_each_file_has_a_line(run, tmp_path):
    make_model().save_to_preset(tmp_path / "model")
    sounds = [write_sound(tmp_path / name, CHIRP) for name in ("a.flac", "b.wav")]
    command = ["transcribe", "--model", tmp_path / "model", *sounds, "--beam-width", 4]
    status, output, _ = run(*command, "--json", tmp_path / "texts.json")
    texts = json.loads((tmp_path / "texts.json").read_text())["texts"]
    assert status == 0 and list(texts) == [str(sound) for sound in sounds]
    assert all(f"{sound}: {texts[str(sound)]}\n" in output for sound in sounds)
