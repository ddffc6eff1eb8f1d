import functools
import hashlib
import zipfile

import pytest

from rt_keras.data.enwik8 import Enwik8
from tests.data.checks import load_set

TEXT = bytes(range(256)) * 4


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """A set of 1,024 bytes instead of 10^8."""
    parts = {"train": (0, 900), "validation": (900, 964), "test": (964, 1024)}
    monkeypatch.setattr(Enwik8, "PARTS", parts)
    monkeypatch.setattr(Enwik8, "MD5", hashlib.md5(TEXT).hexdigest())


load = functools.partial(load_set, "enwik8")


@pytest.mark.parametrize("zipped", [False, True])
def test_splits(zipped, tmp_path):
    if zipped:
        with zipfile.ZipFile(tmp_path / "enwik8.zip", "w") as archive:
            archive.writestr("enwik8", TEXT)
    else:
        (tmp_path / "enwik8").write_bytes(TEXT)
    splits = [load(tmp_path, split, tmp_path) for split in ("train", "validation", "test")]
    assert splits == [[TEXT[:900]], [TEXT[900:964]], [TEXT[964:]]]


def test_other_files_and_none(tmp_path):
    with pytest.raises(FileNotFoundError, match="directory must hold enwik8 or enwik8.zip"):
        load(tmp_path, "train", tmp_path)
    with zipfile.ZipFile(tmp_path / "enwik8.zip", "w") as archive:
        archive.writestr("other", TEXT)
    with pytest.raises(ValueError, match="is not the archive of enwik8"):
        load(tmp_path, "train", tmp_path)
    (tmp_path / "enwik8").write_bytes(TEXT[:-1])
    with pytest.raises(ValueError, match="is not enwik8, .* it has 1,023 bytes and"):
        load(tmp_path, "train", tmp_path)


def test_the_parts_are_those_of_other_papers(monkeypatch):
    monkeypatch.undo()
    sizes = [end - start for start, end in Enwik8.PARTS.values()]
    assert sizes == [90_000_000, 5_000_000, 5_000_000]
