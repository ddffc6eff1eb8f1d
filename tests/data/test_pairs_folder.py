import pytest

from rt_keras.data import PairsFolder
from tests.data.checks import prepared


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
    examples = prepared(PairsFolder(folder, data_dir=folder.parent / "prepared"))[split]
    return sorted((pair["source"], pair["target"]) for pair in examples)


def test_line_by_line(folder):
    assert pairs(folder) == [(b"", b"nothing"), (b"eins", b"one"), (b"zwei", b"two")]


def test_what_ends_a_line(folder):
    write(folder, "test", b"a\r\nb\x0bc\x85".replace(b"\x85", "\u2028".encode()), b"d\re\nf")
    assert pairs(folder, "test") == [(b"a", b"d\re"), ("b\x0bc\u2028".encode(), b"f")]


def test_a_split_that_is_wrong_is_told_and_nothing_is_left_of_it(folder):
    for source, target, message in [
        (b"eins\nzwei\n", b"one\n", "test.source has 2 lines and .*test.target 1: line i"),
        (b"caf\xc3\xa9\n" * 3, b"a\na\ncaf\xe9\n", "test.target is not UTF-8 text: see line 3"),
        (b"", b"", "test.source and .*test.target are empty"),
    ]:
        write(folder, "test", source, target)
        with pytest.raises(ValueError, match=message):
            pairs(folder)
    write(folder, "test", b"eins\n", b"one\n")
    assert pairs(folder, "test") == [(b"eins", b"one")]
    assert list(PairsFolder(folder).files) == ["train", "test"]


def test_files_that_are_missing(folder):
    (folder / "train.target").unlink()
    with pytest.raises(FileNotFoundError, match="or neither; train.target is missing"):
        PairsFolder(folder)
    (folder / "train.source").unlink()
    with pytest.raises(FileNotFoundError, match="must hold train.source and train.target, or"):
        PairsFolder(folder)
