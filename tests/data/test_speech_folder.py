import json

import pytest

from rt_keras.data import data_sets
from rt_keras.data.speech_folder import SpeechFolder
from rt_keras.data.text_folder import split_of
from tests.data import checks
from tests.data.test_sound_file import SINE, write_sound


def write_sounds(folder, texts):
    """Writes a sound for each name, with its text in a file next to it unless it is None."""
    for name, text in texts.items():
        path = write_sound(folder / name)
        if text is not None:
            path.with_suffix(".txt").write_text(text, encoding="utf-8")
    return folder


def prepared(folder):
    """Returns the texts of each split by name."""
    splits = checks.prepared(SpeechFolder(folder, data_dir=folder.parent / "prepared"))
    return {
        split: {x["id"].decode(): x["text"].decode() for x in found}
        for split, found in splits.items()
    }


def test_texts_next_to_the_sounds(tmp_path):
    texts = {"train/Loď 1.WAV": " one\n\ttwo ", "train/deep/b.flac": "café\n", "test/c.ogg": "3"}
    assert prepared(write_sounds(tmp_path / "words", texts)) == {
        "train": {"train/Loď 1.WAV": "one two", "train/deep/b.flac": "café"},
        "test": {"test/c.ogg": "3"},
    }


def test_a_list_of_texts_replaces_the_files(tmp_path):
    folder = write_sounds(tmp_path / "words", dict.fromkeys(["train/a.wav", "train/b.flac"], "no"))
    # With a mark of the order of bytes, as editors write it.
    content = '\ufefftrain/a.wav\t "one", said he\r\n./train/b.flac\ttwo\n'
    (folder / "transcripts.tsv").write_text(content, encoding="utf-8")
    assert prepared(folder) == {"train": {"train/a.wav": '"one", said he', "train/b.flac": "two"}}


def test_sounds_of_one_folder_are_in_one_split(tmp_path):
    names = [f"speaker {number // 2}/{number}.wav" for number in range(80)]
    folder = write_sounds(tmp_path / "words", {**dict.fromkeys(names, "yes"), "alone.wav": "no"})
    files = SpeechFolder(folder, data_dir=tmp_path / "prepared").files
    assert set(files) == {"train", "validation", "test"}
    found = {name: split for split, names in files.items() for name in names}
    assert found == {name: split_of(name.split("/")[0]) for name in [*names, "alone.wav"]}


def test_sounds_without_a_text_are_left_out_and_counted(tmp_path):
    texts = {"a.wav": "one", "b.wav": None, "c.wav": " \n", "d.wav": "two"}
    folder = write_sounds(tmp_path / "words", texts)
    builder = SpeechFolder(folder, data_dir=tmp_path / "prepared")
    assert sorted(sum(builder.files.values(), [])) == ["a.wav", "d.wav"]
    assert builder.split_note == (
        "2 recordings, split by the hashes of their folders; 2 sounds without a text are left out"
    )
    (folder / "transcripts.tsv").write_text("a.wav\tone\nb.wav\t \n")
    note = SpeechFolder(folder, data_dir=tmp_path / "prepared").split_note
    assert note.startswith("1 recordings") and "3 sounds without" in note


def test_only_the_folders_of_splits_count_if_there_are_any(tmp_path):
    texts = {"train/a.wav": "one", "train/b.wav": None, "other/c.wav": "two"}
    builder = SpeechFolder(write_sounds(tmp_path / "words", texts), data_dir=tmp_path / "prepared")
    assert builder.files == {"train": ["train/a.wav"]}
    assert "1 recordings, in folders of their own; 1 sounds without" in builder.split_note
    data_sets.prepare(builder)
    with pytest.raises(ValueError, match="must be one of train .*; add a folder test"):
        data_sets.read(builder, "test")
    (tmp_path / "words" / "train" / "a.wav").write_bytes(b"no sound")
    with pytest.raises(ValueError, match=r"none of 1 recordings .* train/a.wav \(is not a sound"):
        prepared(tmp_path / "words")


def test_a_changed_text_or_sound_is_prepared_again(tmp_path):
    folder, names, sources = write_sounds(tmp_path / "words", {"train/a.wav": "one"}), [], []
    changes = [
        lambda: None,
        lambda: (folder / "train" / "a.txt").write_text("won"),
        lambda: write_sound(folder / "train" / "a.wav", SINE[:800]),
    ]
    for change in changes:
        change()
        builder = SpeechFolder(folder, data_dir=tmp_path / "prepared")
        names.append(builder.builder_config.name)
        sources.append(json.dumps(data_sets.source(builder, "train")))
    assert len(set(names)) == len(set(sources)) == 3


def test_sounds_that_cannot_be_read_are_left_out_and_listed(tmp_path):
    texts = dict.fromkeys(["train/a.wav", "train/b.wav", "test/d.flac", "test/c.wav"], "one")
    folder = write_sounds(tmp_path / "words", texts)
    write_sound(folder / "train" / "a.wav", SINE[:0])
    (folder / "test" / "d.flac").write_bytes(b"no sound")
    assert prepared(folder) == {"train": {"train/b.wav": "one"}, "test": {"test/c.wav": "one"}}
    # Nothing is prepared again.
    builder = data_sets.prepare(SpeechFolder(folder, data_dir=tmp_path / "prepared"))
    damaged, empty = sorted(builder.info.metadata["left_out"])
    assert damaged.startswith("test/d.flac (is not a sound that can be read: ")
    assert empty.startswith("train/a.wav (lasts 0.0 seconds; a recording must have samples and")


@pytest.mark.parametrize(
    "content, error, message",
    [
        (b"b\t1\nc\t2\nd\t3\n", FileNotFoundError, "names 'b', which does not exist .*lines: 3"),
        (b"a.wav\tone\na.wav one\n", ValueError, "line 2: there must be the path of a sound, a t"),
        (b"a.wav\tone\na.wav\tone\n", ValueError, "line 2: 'a.wav' is in the list twice"),
        (b"a.wav\t \n", ValueError, "must hold transcripts.tsv .* has 1 sounds and no text"),
        (b"a.wav\t\xff\n", ValueError, "transcripts.tsv is not UTF-8 text"),
    ],
)
def test_what_is_wrong_with_a_list_is_named(content, error, message, tmp_path):
    folder = write_sounds(tmp_path / "words", {"a.wav": None})
    (folder / "transcripts.tsv").write_bytes(content)
    with pytest.raises(error, match=message):
        SpeechFolder(folder, data_dir=tmp_path / "prepared")
