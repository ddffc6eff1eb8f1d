import numpy as np

from rt_keras.data import debian_speech
from rt_keras.data.wav import encode_wav

SCRIPT = """dialogId("m-hlava", "font_small", "What is (this)?")
dialogStr("Co je  to?")
dialogId("v-ticho", "font_big", "Silence.")
dialogStr("Ticho.")
"""


def test_dialogues_become_recordings_with_texts_and_a_missing_package_is_named(tmp_path, capsys):
    game, arguments = tmp_path / debian_speech.GAME, ["fillets", str(tmp_path / "out")]
    assert debian_speech.main([*arguments, "--share", str(tmp_path)]) == 1
    assert "install fillets-ng-data and fillets-ng-data-cs" in capsys.readouterr().err
    script, sound = game / "script/city/dialogs_cs.lua", game / "sound/city/cs/m-hlava.ogg"
    for path, content in ((script, SCRIPT.encode()), (sound, encode_wav(np.zeros(8), 16_000))):
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    assert debian_speech.main([*arguments, "--share", str(tmp_path)]) == 0
    lines = (tmp_path / "out" / "transcripts.tsv").read_text(encoding="utf-8")
    assert lines == "city/m-hlava.ogg\tco je to\n"
    assert (tmp_path / "out" / "city" / "m-hlava.ogg").read_bytes() == sound.read_bytes()
