import hashlib
import zipfile

import pytest

from rt_keras.data import load_documents
from rt_keras.data.wikitext103 import WikiText103

FIRST = b" \n = A title = \n \n Some text . \n \n = = A section = = \n \n 1 = 2 - 1 . \n"
SECOND = b" = Another = title = \n \n More of it . \n"
FILES = {
    "wiki.train.tokens": FIRST + SECOND,
    "wiki.valid.tokens": SECOND,
    "wiki.test.tokens": FIRST,
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """A set of a few lines instead of 1.8 million."""
    lines = zip(("train", "validation", "test"), FILES.values())
    counts = {split: text.count(b"\n") for split, text in lines}
    monkeypatch.setattr(WikiText103, "LINES", counts)


def write(folder, zipped=False):
    folder.mkdir(exist_ok=True)
    if not zipped:
        for name, text in FILES.items():
            (folder / name).write_bytes(text)
        return folder
    with zipfile.ZipFile(folder / "wikitext-103-v1.zip", "w") as archive:
        for name, text in FILES.items():
            archive.writestr(f"wikitext-103/{name}", text)
    return folder


def load(folder, split, tmp_path):
    documents = load_documents(
        "wikitext103", split, directory=folder, data_dir=tmp_path / "prepared"
    )
    return list(documents.as_numpy_iterator())


@pytest.mark.parametrize("zipped", [False, True])
def test_one_document_an_article(zipped, tmp_path, monkeypatch):
    folder = write(tmp_path / "wikitext", zipped)
    if zipped:
        md5 = hashlib.md5((folder / "wikitext-103-v1.zip").read_bytes()).hexdigest()
        monkeypatch.setattr(WikiText103, "MD5", md5)
    train = load(folder, "train", tmp_path)
    assert sorted(train) == sorted([FIRST, SECOND])
    assert load(folder, "validation", tmp_path) == [SECOND]
    assert load(folder, "test", tmp_path) == [FIRST]


def test_a_file_is_cut_short(tmp_path):
    folder = write(tmp_path / "wikitext")
    (folder / "wiki.valid.tokens").write_bytes(SECOND[:-5])
    with pytest.raises(ValueError, match="is not WikiText-103: validation has 2 lines, not 3"):
        load(folder, "validation", tmp_path)


def test_another_archive(tmp_path):
    folder = write(tmp_path / "wikitext", zipped=True)
    with pytest.raises(ValueError, match="is not WikiText-103: its MD5 sum is"):
        load(folder, "train", tmp_path)


def test_neither(tmp_path):
    with pytest.raises(FileNotFoundError, match="must hold wiki.train.tokens, wiki.valid"):
        load(tmp_path, "train", tmp_path)
