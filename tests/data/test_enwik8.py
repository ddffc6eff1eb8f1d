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
    monkeypatch.setattr(Enwik8, "SPLIT_BYTES", {"train": 900, "validation": 64, "test": 60})
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
    for content in (TEXT[:-1], TEXT[:-1] + b"x"):
        (tmp_path / "enwik8").write_bytes(content)
        with pytest.raises(ValueError, match="is not enwik8, of 1,024 bytes and MD5 sum"):
            load(tmp_path, "train", tmp_path)
