import functools
import hashlib
import zipfile

import pytest

from rt_keras.data.wikitext103 import WikiText103
from tests.data.checks import load_set

FIRST = b" \n = A title = \n \n Some text . \n \n = = A section = = \n \n 1 = 2 - 1 . \n"
SECOND = b" = Another = title = \n \n More of it . \n"
SPLITS = {"train": FIRST + SECOND, "valid": SECOND, "test": FIRST}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """A set of a few lines instead of 1.8 million."""
    counts = [text.count(b"\n") for text in SPLITS.values()]
    counts = dict(zip(("train", "validation", "test"), counts))
    monkeypatch.setattr(WikiText103, "LINES", counts)


def write(folder, zipped=False):
    folder.mkdir()
    for split, text in SPLITS.items():
        if not zipped:
            (folder / f"wiki.{split}.tokens").write_bytes(text)
            continue
        with zipfile.ZipFile(folder / "wikitext-103-v1.zip", "a") as archive:
            archive.writestr(f"wikitext-103/wiki.{split}.tokens", text)
    return folder


load = functools.partial(load_set, "wikitext103")


@pytest.mark.parametrize("zipped", [False, True])
def test_one_document_an_article(zipped, tmp_path, monkeypatch):
    folder = write(tmp_path / "wikitext", zipped)
    if zipped:
        md5 = hashlib.md5((folder / "wikitext-103-v1.zip").read_bytes()).hexdigest()
        monkeypatch.setattr(WikiText103, "MD5", md5)
    splits = [load(folder, split, tmp_path) for split in ("train", "validation", "test")]
    assert [sorted(split) for split in splits] == [sorted([FIRST, SECOND]), [SECOND], [FIRST]]


def test_other_files_and_none(tmp_path):
    with pytest.raises(FileNotFoundError, match="must hold wiki.train.tokens, wiki.valid"):
        load(tmp_path, "train", tmp_path)
    folder = write(tmp_path / "wikitext")
    (folder / "wiki.valid.tokens").write_bytes(SECOND[:-5])
    with pytest.raises(ValueError, match="is not WikiText-103: validation has 2 lines, not 3"):
        load(folder, "validation", tmp_path)
    with pytest.raises(ValueError, match="is not WikiText-103: its MD5 sum is"):
        load(write(tmp_path / "zipped", zipped=True), "train", tmp_path)
