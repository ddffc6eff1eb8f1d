import pytest

from rt_keras.data.text_file import TextFile
from tests.data import checks

TEXT = b"".join(b"line %3d\n" % number for number in range(200))


def prepared(path, data_dir):
    splits = checks.prepared(TextFile(path, data_dir=data_dir))
    return {split: [(x["id"], x["text"]) for x in found] for split, found in splits.items()}


@pytest.mark.parametrize("name", ["a book", "log.2024.md"])
def test_a_file_of_any_name_is_cut_in_three(tmp_path, name):
    (tmp_path / name).write_bytes(TEXT)
    (tmp_path / "other.txt").write_bytes(b"no")
    found = prepared(tmp_path / name, tmp_path / "tfds")
    assert list(found) == ["train", "validation", "test"]
    assert found["train"] == [(name.encode(), TEXT[:1620])]
    assert found["validation"] == [(name.encode(), TEXT[1620:1710])]
    assert found["test"] == [(name.encode(), TEXT[1710:])]


def test_bytes_that_are_not_utf8_are_kept_and_noted_once(tmp_path):
    path = tmp_path / "book.txt"
    path.write_bytes(b"\xff\n" * 100)
    assert prepared(path, tmp_path / "tfds")["test"] == [(b"book.txt", b"\xff\n" * 5)]
    builder = TextFile(path, data_dir=tmp_path / "tfds")
    assert builder.info.metadata["not_utf8"] == ["book.txt"]


def test_what_cannot_be_read(tmp_path):
    with pytest.raises(FileNotFoundError, match="a file that exists. .*nowhere.txt"):
        TextFile(tmp_path / "nowhere.txt")
    with pytest.raises(IsADirectoryError, match="must be a file, not a folder"):
        TextFile(tmp_path)
    (tmp_path / "short.txt").write_bytes(b"x" * 99)
    with pytest.raises(ValueError, match="at least 100 bytes.*Received: .*short.txt of 99 bytes"):
        TextFile(tmp_path / "short.txt")
