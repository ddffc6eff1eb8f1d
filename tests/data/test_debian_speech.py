import gzip

import numpy as np
import pytest

from rt_keras.data import debian_speech
from rt_keras.data.debian_speech import plain
from rt_keras.data.speech_folder import SpeechFolder
from rt_keras.data.wav import encode_wav

# Scripts of two scenes: with a quote in a text, no sound, no words, the text of another, two lines.
SCRIPTS = {
    "city": r"""-- The first lines.
dialogId("m-hlava", "font_small", "What is (this)?")
dialogStr("Co je to?")

dialogId("v-nic", "font_big", "Nothing, \"hm\".")

dialogStr("Nic, \"hm\".")
dialogId("v-ticho", "font_big", "Silence.")
dialogStr("Ticho.")
""",
    "ufo": """dialogId("m-tecky", "font_small", "...")
dialogStr("...")
dialogId("v-znovu", "font_big", "What is this?")
dialogStr("Co je to ?")
dialogId("v-kdo", "font_big", "Who?")
dialogStr(
"KDO  tam?")
""",
}
DIALOGUES = ["city/m-hlava", "city/v-nic", "ufo/m-tecky", "ufo/v-znovu", "ufo/v-kdo"]
PROMPTS = """; digits/2: a comment
digits/1: One.
digits/one: one

vm-hello: Hello -- it's   you: 4-5!
no-sound: nothing
empty: ...
no colon
"""


def write_sounds(folder, names):
    """Writes sounds of different lengths."""
    for count, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_wav(np.zeros(8 + count), 16_000))


@pytest.fixture
def share(tmp_path):
    """A folder with the files of both packages."""
    game = tmp_path / "share" / debian_speech.GAME
    for scene, script in SCRIPTS.items():
        for language in ("cs", "nl"):
            path = game / "script" / scene / f"dialogs_{language}.lua"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(script, encoding="utf-8")
    parts = [name.split("/") for name in DIALOGUES]
    write_sounds(game / "sound", [f"{scene}/cs/{name}.ogg" for scene, name in parts])
    write_sounds(game / "sound", ["ufo/nl/v-kdo.ogg"])
    names = ["digits/1.wav", "digits/one.wav", "digits/2.wav", "vm-hello.wav", "empty.wav"]
    write_sounds(tmp_path / "share" / debian_speech.EXCHANGE, names)
    prompts = tmp_path / "share" / debian_speech.PROMPTS
    prompts.parent.mkdir(parents=True)
    prompts.write_bytes(gzip.compress(PROMPTS.encode()))
    return tmp_path / "share"


@pytest.fixture
def run(share, tmp_path, capsys):
    """Runs the program; returns its status, its output and its errors."""

    def run(*arguments):
        status = debian_speech.main([*map(str, arguments), "--share", str(share)])
        return status, *capsys.readouterr()

    return run


def texts(folder):
    """Returns the texts of a folder as they are read."""
    builder = SpeechFolder(folder, data_dir=folder.parent / "prepared")
    assert sorted(sum(builder.files.values(), [])) == sorted(builder.texts)
    return builder.texts


def test_dialogues_of_the_game(run, share, tmp_path):
    assert run("fillets", tmp_path / "out")[:2] == (0, "3 recordings with texts\n")
    assert texts(tmp_path / "out") == {
        "city/m-hlava.ogg": "co je to",
        "city/v-nic.ogg": "nic hm",
        "ufo/v-kdo.ogg": "kdo tam",
    }
    for scene, name in (("city", "v-nic"), ("ufo", "v-kdo")):
        source = share / debian_speech.GAME / "sound" / scene / "cs" / f"{name}.ogg"
        assert (tmp_path / "out" / scene / f"{name}.ogg").read_bytes() == source.read_bytes()


def test_another_language(run, tmp_path):
    assert run("fillets", tmp_path / "out", "--language", "nl")[0] == 0
    assert texts(tmp_path / "out") == {"ufo/v-kdo.ogg": "kdo tam"}


def test_prompts_of_the_telephone_exchange(run, share, tmp_path):
    assert run("asterisk", tmp_path / "out")[:2] == (0, "2 recordings with texts\n")
    assert texts(tmp_path / "out") == {
        "digits/1.wav": "one",
        "vm-hello.wav": "hello it's you 4 5",
    }
    files = [path.name for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert sorted(files) == ["1.wav", "transcripts.tsv", "vm-hello.wav"]
    source = share / debian_speech.EXCHANGE / "digits" / "1.wav"
    assert (tmp_path / "out" / "digits" / "1.wav").read_bytes() == source.read_bytes()


def test_a_recording_is_read_with_its_text(run, tmp_path):
    run("asterisk", tmp_path / "out")
    builder = SpeechFolder(tmp_path / "out", data_dir=tmp_path / "prepared")
    builder.download_and_prepare()
    found = [
        (example["id"], example["text"])
        for split in builder.files
        for example in builder.as_dataset(split=split).as_numpy_iterator()
    ]
    assert (b"vm-hello.wav", b"hello it's you 4 5") in found


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", ""),
        ("... ?!", ""),
        ("Ruce  vzhůru,\nŘehoři!", "ruce vzhůru řehoři"),
        ("don't say 'no'", "don't say 'no'"),
        ("Zo'n 20-tal; één", "zo'n 20 tal één"),
        # An accent of its own, and vowels that are marks.
        ("Cafe\u0301!", "caf\u00e9"),
        ("हिन्दी", "हिन्दी"),
    ],
)
def test_texts_become_plain(text, expected):
    assert plain(text) == expected


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            ["fillets", "--language", "de"],
            "has no dialogues in 'de'; install fillets-ng-data and fillets-ng-data-de",
        ),
        (["fillets", "--share", "nowhere"], "install fillets-ng-data and fillets-ng-data-cs"),
        (["asterisk", "--share", "nowhere"], "does not exist; install asterisk-core-sounds-en\n"),
    ],
)
def test_a_missing_package_is_named(arguments, message, share, tmp_path, capsys):
    name, *options = arguments
    options = ["--share", str(share), *options]
    assert debian_speech.main([name, str(tmp_path / "out"), *options]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error
    assert not (tmp_path / "out").exists()


def test_texts_without_their_sounds(run, share, tmp_path):
    (share / debian_speech.EXCHANGE).rename(share / "elsewhere")
    status, _, error = run("asterisk", tmp_path / "out")
    assert status == 1 and "has no sounds; install asterisk-core-sounds-en-wav" in error


def test_a_folder_that_exists_is_not_written_to(run, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "own.txt").write_text("mine")
    status, output, error = run("asterisk", tmp_path / "out")
    assert (status, output) == (1, "") and "already exists; name a new or an empty folder" in error
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["own.txt"]
