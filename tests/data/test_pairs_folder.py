import pytest
import tensorflow_datasets as tfds

from rt_keras.data import PairsFolder


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "pairs"
    write(folder, "train", b"eins\nzwei\n\n", b"one\ntwo\nnothing\n")
    return folder


def write(folder, split, source, target):
    folder.mkdir(exist_ok=True)
    (folder / f"{split}.source").write_bytes(source)
    (folder / f"{split}.target").write_bytes(target)


def pairs(folder, split="train"):
    builder = PairsFolder(folder, data_dir=folder.parent / "prepared")
    builder.download_and_prepare()
    examples = tfds.as_numpy(builder.as_dataset(split=split))
    return sorted((pair["source"], pair["target"]) for pair in examples)


def test_line_by_line(folder):
    assert pairs(folder) == [(b"", b"nothing"), (b"eins", b"one"), (b"zwei", b"two")]


def test_what_ends_a_line(folder):
    write(folder, "test", b"a\r\nb\x0bc\x85".replace(b"\x85", "\u2028".encode()), b"d\re\nf")
    assert pairs(folder, "test") == [(b"a", b"d\re"), ("b\x0bc\u2028".encode(), b"f")]


def test_splits_are_those_that_have_files(folder):
    assert list(PairsFolder(folder).files) == ["train"]
    write(folder, "validation", b"drei", b"three")
    builder = PairsFolder(folder, data_dir=folder.parent)
    builder.download_and_prepare()
    assert {name: split.num_examples for name, split in builder.info.splits.items()} == {
        "train": 3,
        "validation": 1,
    }


def test_a_folder_that_changed_is_read_anew(folder):
    assert len(pairs(folder)) == 3
    write(folder, "train", b"vier\n", b"four\n")
    assert pairs(folder) == [(b"vier", b"four")]


def test_files_that_are_not_parallel(folder):
    write(folder, "test", b"eins\nzwei\n", b"one\n")
    with pytest.raises(ValueError, match="test.source has 2 lines and .*test.target 1: line i"):
        pairs(folder)


def test_files_that_are_not_utf8(folder):
    write(folder, "test", b"caf\xc3\xa9\n" * 3, b"coffee\ncoffee\ncaf\xe9\n")
    with pytest.raises(ValueError, match="test.target is not UTF-8 text: see line 3"):
        pairs(folder)


def test_empty_files(folder):
    write(folder, "test", b"", b"")
    with pytest.raises(ValueError, match="test.source and .*test.target are empty"):
        pairs(folder)


def test_nothing_is_left_of_what_failed(folder):
    write(folder, "test", b"eins\nzwei\n", b"one\n")
    with pytest.raises(ValueError, match="has 2 lines"):
        pairs(folder)
    write(folder, "test", b"eins\n", b"one\n")
    assert pairs(folder, "test") == [(b"eins", b"one")]


def test_files_that_are_missing(folder, tmp_path):
    (folder / "train.target").unlink()
    with pytest.raises(FileNotFoundError, match="or neither. train.target is missing"):
        PairsFolder(folder)
    (folder / "train.source").unlink()
    with pytest.raises(FileNotFoundError, match="must hold train.source and train.target, or"):
        PairsFolder(folder)
    with pytest.raises(FileNotFoundError, match="directory must be a folder.*nowhere'"):
        PairsFolder(tmp_path / "nowhere")
