import json
import os

import pytest

from rt_keras.data import PairsFolder, ParallelDocuments, data_sets
from tests.data.checks import prepared
from tests.data.checks import write_texts as write


def pairs(builder):
    """Returns the pairs of each split, sorted."""
    return {
        split: sorted((pair["source"].decode(), pair["target"].decode()) for pair in examples)
        for split, examples in prepared(builder).items()
    }


# === Files ===


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "pairs", files("train", b"eins\nzwei\n\n", b"one\ntwo\nnothing\n"))


def files(split, source, target):
    return {f"{split}.source": source, f"{split}.target": target}


def test_line_by_line_and_what_ends_a_line(folder, tmp_path):
    write(folder, files("test", "a\r\nb\x0bc\u2028".encode(), b"d\re\nf"))
    assert pairs(PairsFolder(folder, data_dir=tmp_path)) == {
        "train": [("", "nothing"), ("eins", "one"), ("zwei", "two")],
        "test": [("a", "d\re"), ("b\x0bc\u2028", "f")],
    }


def test_a_split_that_is_wrong_is_told_and_nothing_is_left_of_it(folder, tmp_path):
    for source, target, message in [
        (b"eins\nzwei\n", b"one\n", "test.target has 1 lines and .*test.source has more: line i"),
        (b"caf\xc3\xa9\n" * 3, b"a\na\ncaf\xe9\n", "test.target is not UTF-8 text: see line 3"),
        (b"", b"", "test.source and .*test.target are empty"),
    ]:
        write(folder, files("test", source, target))
        with pytest.raises(ValueError, match=message):
            pairs(PairsFolder(folder, data_dir=tmp_path))
    write(folder, files("test", b"eins\n", b"one\n"))
    assert pairs(PairsFolder(folder, data_dir=tmp_path))["test"] == [("eins", "one")]


def test_files_that_are_missing(folder):
    (folder / "train.target").unlink()
    with pytest.raises(FileNotFoundError, match="or neither; train.target is missing"):
        PairsFolder(folder)
    (folder / "train.source").unlink()
    with pytest.raises(FileNotFoundError, match="must hold train.source and train.target, or"):
        PairsFolder(folder)


# === Folders ===


@pytest.fixture
def documents(tmp_path):
    folder = tmp_path / "pages"
    names = [f"man1/{number}.txt" for number in range(60)]
    write(folder / "english", {name: f"page {name}\nin English" for name in names})
    write(folder / "german", {name: f"Seite {name}\nauf Deutsch" for name in names})
    return folder


def test_documents_of_one_name_are_a_pair(documents, tmp_path):
    builder = ParallelDocuments(documents, data_dir=tmp_path)
    splits = pairs(builder)
    everything = sum(splits.values(), [])
    assert len(everything) == len(set(everything)) == 60
    assert len(splits["train"]) > 45 and set(splits) == {"train", "validation", "test"}
    for source, target in everything:
        name = source.split()[1]
        assert (source, target) == (f"page {name}\nin English", f"Seite {name}\nauf Deutsch")
    source = data_sets.source(builder, "train")
    assert json.loads(json.dumps(source)) == source


def test_documents_without_a_partner_or_text_are_left_out_and_counted(documents, tmp_path):
    before = ParallelDocuments(documents, data_dir=tmp_path).files
    write(documents / "english", {"alone.txt": "alone", "empty.txt": "a text"})
    write(documents / "german", {"empty.txt": " \n", "man1/other.txt": "anders"})
    both = os.pathsep.join(str(documents / name) for name in ("german", "english"))
    builder = ParallelDocuments(both, data_dir=tmp_path)
    assert builder.files == before and "60 pairs" in builder.split_note
    assert "2 documents without a partner and 1 empty pairs are left out" in builder.split_note
    assert all(source.startswith("Seite") for source, _ in pairs(builder)["test"])


def test_folders_that_cannot_be_read_are_refused(documents, tmp_path):
    (documents / "german" / "man1" / "7.txt").write_bytes(b"\xff")
    with pytest.raises(ValueError, match="7.txt is not UTF-8 text"):
        pairs(ParallelDocuments(documents, data_dir=tmp_path))
    write(documents / "polish", {"a.txt": "a"})
    with pytest.raises(ValueError, match="exactly two subfolders.*english, german, polish"):
        ParallelDocuments(documents)
    write(tmp_path / "other" / "a", {"x.txt": "x"})
    write(tmp_path / "other" / "b", {"y.txt": "y"})
    with pytest.raises(ValueError, match="documents of the same names.*None are in both"):
        ParallelDocuments(tmp_path / "other")
