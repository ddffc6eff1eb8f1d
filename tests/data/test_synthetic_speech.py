from rt_keras.data.synthetic_speech import main

# It speaks as espeak-ng does, in silence.
PROGRAM = """#!/usr/bin/env python3
import sys, wave
with wave.open(sys.argv[sys.argv.index("-w") + 1], "wb") as sound:
    sound.setparams((1, 2, 22_050, 0, "NONE", ""))
    sound.writeframes(bytes(200 * len(sys.argv[-1])))
"""


def test_each_line_is_a_sound_with_its_text(tmp_path, capsys, monkeypatch):
    for name, text in (("texts.txt", "Co je to?\n\nNic.\n"), ("espeak-ng", PROGRAM)):
        (tmp_path / name).write_text(text)
    arguments = [str(tmp_path / "texts.txt"), str(tmp_path / "speech")]
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert main(arguments) == 1
    assert "espeak-ng is not installed" in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (tmp_path / "espeak-ng").chmod(0o755)
    assert main(arguments) == 0
    lines = (tmp_path / "speech" / "transcripts.tsv").read_text(encoding="utf-8")
    assert lines == "00000/0000000.wav\tco je to\n00000/0000001.wav\tnic\n"
    assert (tmp_path / "speech/00000/0000001.wav").stat().st_size == 44 + 600
