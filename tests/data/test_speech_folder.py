import json

import numpy as np
import pytest
import tensorflow_datasets as tfds

from rt_keras.data import tfds_sets
from rt_keras.data.sound_file import read_sound
from rt_keras.data.speech_folder import SpeechFolder
from rt_keras.data.text_folder import split_of
from rt_keras.data.wav import wav_samples
from tests.data.test_sound_file import SINE, write_sound


def write_sounds(folder, texts):
    """Writes a sound for each name, with its text in a file next to it unless it is None."""
    for name, text in texts.items():
        path = write_sound(folder / name)
        if text is not None:
            path.with_suffix(".txt").write_text(text, encoding="utf-8")
    return folder


def write_list(folder, content):
    (folder / "transcripts.tsv").write_bytes(content.encode("utf-8"))


def prepared(folder):
    """Returns the texts of each split by name."""
    builder = tfds_sets.prepare(SpeechFolder(folder, data_dir=folder.parent / "prepared"))
    return {
        split: {
            example["id"].decode(): example["text"].decode()
            for example in tfds.as_numpy(builder.as_dataset(split=split))
        }
        for split in builder.info.splits
    }


def test_texts_next_to_the_sounds(tmp_path):
    texts = {"train/a.wav": "one", "train/deep/b.flac": " café\n", "test/c.ogg": "three"}
    folder = write_sounds(tmp_path / "words", texts)
    assert prepared(folder) == {
        "train": {"train/a.wav": "one", "train/deep/b.flac": "café"},
        "test": {"test/c.ogg": "three"},
    }


def test_a_list_of_texts_replaces_the_files(tmp_path):
    folder = write_sounds(tmp_path / "words", dict.fromkeys(["train/a.wav", "train/b.flac"], "no"))
    # With a mark of the order of bytes, as editors write it.
    write_list(folder, '\ufefftrain/a.wav\t "one", said he\r\n./train/b.flac\ttwo\n')
    assert prepared(folder) == {"train": {"train/a.wav": '"one", said he', "train/b.flac": "two"}}


def test_sounds_of_one_folder_are_in_one_split(tmp_path):
    folders = [f"speaker {number}" for number in range(40)]
    names = [f"{folder}/{number}.wav" for folder in folders for number in range(2)]
    folder = write_sounds(tmp_path / "words", {**dict.fromkeys(names, "yes"), "alone.wav": "no"})
    splits = prepared(folder)
    assert set(splits) == {"train", "validation", "test"}
    found = {name: split for split, texts in splits.items() for name in texts}
    assert found == {name: split_of(name.split("/")[0]) for name in [*names, "alone.wav"]}


def test_sounds_without_a_text_are_left_out_and_counted(tmp_path):
    texts = {"a.wav": "one", "b.wav": None, "c.wav": " \n", "d.wav": "two"}
    folder = write_sounds(tmp_path / "words", texts)
    builder = SpeechFolder(folder, data_dir=tmp_path / "prepared")
    assert sorted(sum(builder.files.values(), [])) == ["a.wav", "d.wav"]
    assert builder.split_note == (
        "2 recordings, split by the hashes of their folders; 2 sounds without a text are left out"
    )
    write_list(folder, "a.wav\tone\nb.wav\t \n")
    note = SpeechFolder(folder, data_dir=tmp_path / "prepared").split_note
    assert note.startswith("1 recordings") and "3 sounds without" in note


def test_only_the_folders_of_splits_count_if_there_are_any(tmp_path):
    texts = {"train/a.wav": "one", "train/b.wav": None, "other/c.wav": "two"}
    builder = SpeechFolder(write_sounds(tmp_path / "words", texts), data_dir=tmp_path / "prepared")
    assert builder.files == {"train": ["train/a.wav"]}
    assert "1 recordings, in folders of their own; 1 sounds without" in builder.split_note


def test_a_split_without_sounds(tmp_path):
    folder = write_sounds(tmp_path / "words", {"train/a.wav": "one"})
    builder = tfds_sets.prepare(SpeechFolder(folder, data_dir=tmp_path / "prepared"))
    with pytest.raises(ValueError, match="must be one of train .*; add a folder test"):
        tfds_sets.read(builder, "test")


def test_a_changed_text_or_sound_is_prepared_again(tmp_path):
    folder = write_sounds(tmp_path / "words", {"a.wav": "one", "b.wav": "two"})
    names = [SpeechFolder(folder, data_dir=tmp_path / "prepared").builder_config.name]
    (folder / "a.txt").write_text("won")
    names.append(SpeechFolder(folder, data_dir=tmp_path / "prepared").builder_config.name)
    write_sound(folder / "b.wav", SINE[:800])
    names.append(SpeechFolder(folder, data_dir=tmp_path / "prepared").builder_config.name)
    assert len(set(names)) == 3


def test_the_source_of_a_run_is_the_same_when_it_is_read_again(tmp_path):
    folder = write_sounds(tmp_path / "words", {"train/a.wav": "one"})
    builder = SpeechFolder(folder, data_dir=tmp_path / "prepared")
    source = tfds_sets.source(builder, "train")
    assert json.loads(json.dumps(source)) == source
    (folder / "train" / "a.txt").write_text("two")
    changed = tfds_sets.source(SpeechFolder(folder, data_dir=tmp_path / "prepared"), "train")
    assert changed["files"] != source["files"]


def test_sounds_are_prepared_at_16_khz(tmp_path):
    folder = tmp_path / "words"
    write_sound(folder / "train" / "a.wav", SINE[::2], 8_000).with_suffix(".txt").write_text("one")
    builder = tfds_sets.prepare(SpeechFolder(folder, data_dir=tmp_path / "prepared"))
    (example,) = tfds_sets.read(builder, "train").as_numpy_iterator()
    expected = read_sound(folder / "train" / "a.wav")
    assert expected.shape == (1600,)
    np.testing.assert_allclose(wav_samples(example["sound"]) / 2**15, expected, rtol=0, atol=1e-4)


def test_sounds_that_cannot_be_read_are_left_out_and_listed(tmp_path):
    texts = dict.fromkeys(["train/a.wav", "train/b.wav", "test/c.wav", "test/d.flac"], "one")
    folder = write_sounds(tmp_path / "words", texts)
    write_sound(folder / "train" / "a.wav", SINE[:0])
    (folder / "test" / "d.flac").write_bytes(b"no sound")
    assert prepared(folder) == {"train": {"train/b.wav": "one"}, "test": {"test/c.wav": "one"}}
    # The second time, nothing is prepared.
    for _ in range(2):
        builder = tfds_sets.prepare(SpeechFolder(folder, data_dir=tmp_path / "prepared"))
        damaged, empty = sorted(builder.info.metadata["left_out"])
        assert damaged.startswith("test/d.flac (is not a sound that can be read: ")
        assert empty == (
            "train/a.wav (lasts 0.0 seconds; a recording must have samples and last at most 3,600 "
            "seconds)"
        )


def test_a_split_of_which_nothing_can_be_read(tmp_path):
    folder = write_sounds(tmp_path / "words", {"train/a.wav": "one", "test/b.wav": "one"})
    (folder / "test" / "b.wav").write_bytes(b"no sound")
    with pytest.raises(ValueError, match=r"none of 1 recordings .* test/b.wav \(is not a sound"):
        prepared(folder)
    assert not list((tmp_path / "prepared").glob("*/*/*"))


def test_suffixes_in_capitals_and_strange_names(tmp_path):
    texts = {"train/Loď 1.WAV": "one", "train/b.Flac": "two"}
    assert prepared(write_sounds(tmp_path / "words", texts)) == {"train": texts}


def test_white_space_in_texts_becomes_one_space(tmp_path):
    folder = write_sounds(tmp_path / "words", {"train/a.wav": " one\n\ttwo  three\n"})
    assert prepared(folder) == {"train": {"train/a.wav": "one two three"}}


@pytest.mark.parametrize(
    "content, error, message",
    [
        ("a.wav\tone\nb.wav\ttwo\n", FileNotFoundError, "names 'b.wav', which do not exist"),
        ("b\t1\nc\t2\nd\t3\n", FileNotFoundError, "names 'b' and 2 others, which do not exist"),
        ("a.mp4\tone\n", FileNotFoundError, "names 'a.mp4', .* or do not end in .wav or .flac or"),
        ("a.wav\tone\na.wav one\n", ValueError, "line 2: there must be the path of a sound, a tab"),
        ("a.wav\tone\ttwo\n", ValueError, "line 1: there must be the path of a sound, a tab"),
        ("a.wav\tone\na.wav\tone\n", ValueError, "line 2: 'a.wav' is in the list twice"),
        ("a.wav\t \n", ValueError, "must hold transcripts.tsv .* which has 1 sounds and no text"),
        ("", ValueError, "must hold transcripts.tsv .* which has 1 sounds and no text"),
    ],
)
def test_what_is_wrong_with_a_list_is_named(content, error, message, tmp_path):
    folder = write_sounds(tmp_path / "words", {"a.wav": None})
    write_list(folder, content)
    with pytest.raises(error, match=message):
        SpeechFolder(folder, data_dir=tmp_path / "prepared")


def test_texts_that_are_not_utf8(tmp_path):
    folder = write_sounds(tmp_path / "words", {"a.wav": "one"})
    for name in ("a.txt", "transcripts.tsv"):
        (folder / name).write_bytes(b"a.wav\t\xff\n")
        with pytest.raises(ValueError, match=f"{name} is not UTF-8 text"):
            SpeechFolder(folder, data_dir=tmp_path / "prepared")


def test_folders_without_sounds(tmp_path):
    with pytest.raises(FileNotFoundError, match="directory must exist"):
        SpeechFolder(tmp_path / "nowhere")
    (tmp_path / "a.txt").write_text("one")
    with pytest.raises(FileNotFoundError, match="must hold .wav or .flac or .ogg or .mp3 files"):
        SpeechFolder(tmp_path)
