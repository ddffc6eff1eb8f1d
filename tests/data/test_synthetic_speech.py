import os

import pytest
import soundfile

from rt_keras.data.speech_folder import SpeechFolder
from rt_keras.data.synthetic_speech import main, phonemes_of

# It speaks and prints as espeak-ng does: silence, and the same phonemes for any text.
PROGRAM = """#!/usr/bin/env python3
import sys, wave

voice, text = sys.argv[sys.argv.index("-v") + 1], sys.argv[-1]
if voice == "none":
    sys.exit("Error: The specified espeak-ng voice does not exist.")
if "-w" in sys.argv:
    with wave.open(sys.argv[sys.argv.index("-w") + 1], "wb") as sound:
        sound.setparams((1, 2, 22_050, 0, "NONE", ""))
        sound.writeframes(bytes(200 * len(text)))
else:
    print(" ts \\u02c8o  j e")
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    path = tmp_path / "bin" / "espeak-ng"
    path.parent.mkdir()
    path.write_text(PROGRAM)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("Co je to?\n\n" + "Nic.\n" * 40, encoding="utf-8")
    return path


def test_each_line_is_a_sound_with_its_text(program, texts, tmp_path, capsys):
    assert main([str(texts), str(tmp_path / "speech"), "--voices", "cs", "cs+f3"]) == 0
    assert capsys.readouterr().out == "41 sounds\n"
    lines = (tmp_path / "speech" / "transcripts.tsv").read_text(encoding="utf-8").splitlines()
    assert lines[:2] == ["00000/0000000.wav\tco je to", "00000/0000001.wav\tnic"]
    assert lines[-1] == "00002/0000040.wav\tnic"
    assert soundfile.info(tmp_path / "speech" / "00000" / "0000001.wav").frames == 300
    builder = SpeechFolder(tmp_path / "speech", data_dir=tmp_path / "prepared")
    assert len(builder.texts) == 41


def test_phonemes_are_separated_by_spaces(program, texts, tmp_path):
    assert phonemes_of("co je", "cs") == "ts o j e"
    assert main([str(texts), str(tmp_path / "speech"), "--phonemes"]) == 0
    assert "\tts o j e\n" in (tmp_path / "speech" / "transcripts.tsv").read_text(encoding="utf-8")


def test_a_voice_that_is_unknown(program, texts, tmp_path, capsys):
    assert main([str(texts), str(tmp_path / "speech"), "--voices", "none"]) == 1
    assert "cannot speak with the voice 'none': Error: The specified" in capsys.readouterr().err
    assert not (tmp_path / "speech").exists()


def test_nothing_to_speak_and_no_program(program, texts, tmp_path, monkeypatch, capsys):
    texts.write_text("\n...\n")
    assert main([str(texts), str(tmp_path / "speech")]) == 1
    assert "has no text" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main([str(texts), str(tmp_path / "speech")]) == 1
    assert "espeak-ng is not installed" in capsys.readouterr().err
