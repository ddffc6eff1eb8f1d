import json
import os

import pytest
import tensorflow_datasets as tfds

from rt_keras.data import ParallelDocuments, load_pairs, tfds_sets
from tests.data.checks import write_texts as write


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "pages"
    names = [f"man1/{number}.txt" for number in range(60)]
    write(folder / "english", {name: f"page {name}\nin English" for name in names})
    write(folder / "german", {name: f"Seite {name}\nauf Deutsch" for name in names})
    return folder


def pairs(directory, split, data_dir):
    examples = load_pairs("parallel_documents", split, directory, data_dir)
    return [tuple(x.decode() for x in pair.values()) for pair in tfds.as_numpy(examples)]


def test_documents_of_one_name_are_a_pair(folder, tmp_path):
    found = {split: pairs(folder, split, tmp_path) for split in ("train", "validation", "test")}
    everything = sum(found.values(), [])
    assert len(everything) == len(set(everything)) == 60
    assert len(found["train"]) > 45 and all(found.values())
    for source, target in everything:
        name = source.split()[1]
        assert (source, target) == (f"page {name}\nin English", f"Seite {name}\nauf Deutsch")
    source = tfds_sets.source(ParallelDocuments(folder, data_dir=tmp_path), "train")
    assert json.loads(json.dumps(source)) == source


def test_documents_without_a_partner_or_text_are_left_out_and_counted(folder, tmp_path):
    before = ParallelDocuments(folder, data_dir=tmp_path).files
    write(folder / "english", {"alone.txt": "alone", "empty.txt": "a text"})
    write(folder / "german", {"empty.txt": " \n", "man1/other.txt": "anders"})
    both = os.pathsep.join(str(folder / name) for name in ("german", "english"))
    builder = ParallelDocuments(both, data_dir=tmp_path)
    assert builder.files == before and "60 pairs" in builder.split_note
    assert pairs(both, "test", tmp_path)[0][0].startswith("Seite")
    assert "2 documents without a partner and 1 empty pairs are left out" in builder.split_note


def test_folders_that_cannot_be_read_are_refused(folder, tmp_path):
    (folder / "german" / "man1" / "7.txt").write_bytes(b"\xff")
    with pytest.raises(ValueError, match="7.txt is not UTF-8 text"):
        pairs(folder, "train", tmp_path)
    write(folder / "polish", {"a.txt": "a"})
    with pytest.raises(ValueError, match="exactly two subfolders.*english, german, polish"):
        ParallelDocuments(folder)
    write(tmp_path / "other" / "a", {"x.txt": "x"})
    write(tmp_path / "other" / "b", {"y.txt": "y"})
    with pytest.raises(ValueError, match="documents of the same names.*None are in both"):
        ParallelDocuments(tmp_path / "other")
