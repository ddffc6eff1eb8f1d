import hashlib
import zipfile

import pytest

from rt_keras.data import load_documents
from rt_keras.data.enwik8 import Enwik8

TEXT = bytes(range(256)) * 4


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """A set of 1,024 bytes instead of 10^8."""
    monkeypatch.setattr(Enwik8, "SPLIT_BYTES", {"train": 900, "validation": 64, "test": 60})
    monkeypatch.setattr(Enwik8, "MD5", hashlib.md5(TEXT).hexdigest())


def load(folder, split, tmp_path):
    documents = load_documents("enwik8", split, directory=folder, data_dir=tmp_path / "prepared")
    return list(documents.as_numpy_iterator())


@pytest.mark.parametrize("zipped", [False, True])
def test_splits(zipped, tmp_path):
    folder = tmp_path / "enwik8"
    folder.mkdir()
    if zipped:
        with zipfile.ZipFile(folder / "enwik8.zip", "w") as archive:
            archive.writestr("enwik8", TEXT)
    else:
        (folder / "enwik8").write_bytes(TEXT)
    assert load(folder, "train", tmp_path) == [TEXT[:900]]
    assert load(folder, "validation", tmp_path) == [TEXT[900:964]]
    assert load(folder, "test", tmp_path) == [TEXT[964:]]


def test_neither_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="directory must hold enwik8 or enwik8.zip"):
        load(tmp_path, "train", tmp_path)


@pytest.mark.parametrize("content", [TEXT[:-1], TEXT[:-1] + b"x"])
def test_another_file(content, tmp_path):
    (tmp_path / "enwik8").write_bytes(content)
    with pytest.raises(ValueError, match="is not enwik8, of 1,024 bytes and MD5 sum"):
        load(tmp_path, "train", tmp_path)


def test_another_archive(tmp_path):
    with zipfile.ZipFile(tmp_path / "enwik8.zip", "w") as archive:
        archive.writestr("other", TEXT)
    with pytest.raises(ValueError, match="is not the archive of enwik8"):
        load(tmp_path, "train", tmp_path)
