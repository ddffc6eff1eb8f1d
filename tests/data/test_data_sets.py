import argparse

import pytest

from rt_keras.data import data_sets
from rt_keras.data.data_sets import DataSets
from rt_keras.data.text_folder import TextFile, TextFolder
from tests.data.checks import write_set

SETS = DataSets("one of these", "mnist|squad(/v1.1)?|python_source", ("text_folder", "enwik8"))


@pytest.mark.parametrize(
    "name, directory, message",
    [
        ("imdb", None, "name must be one of these. Received: name='imdb'"),
        ("enwik8", None, ".data.directory. must be the path to read for enwik8. Received: "),
        ("mnist", "x", "must be None for mnist; it is for text_folder, enwik8. .*directory='x'"),
        ("python_source", "x", "directory must be None for python_source; "),
    ],
)
def test_names_and_folders_that_do_not_go_together(name, directory, message):
    with pytest.raises(ValueError, match=message):
        SETS.builder(name, directory)


def write_articles(folder):
    keys = ("article", "abstract", "section_names")
    articles = [dict.fromkeys(keys, f"text {number}") for number in range(10)]
    write_set("scientific_papers/arxiv", folder, {"train": articles, "test": articles[:2]})


def prepared(folder):
    return data_sets.prepare(data_sets.downloaded("scientific_papers/arxiv", folder))


def texts(builder, *split):
    return [example["article"] for example in data_sets.read(builder, *split).as_numpy_iterator()]


def test_what_is_prepared_is_read_in_an_order_that_stays(tmp_path):
    write_articles(tmp_path)
    builder = prepared(tmp_path)
    train = texts(builder, "train")
    assert sorted(train) == [f"text {number}".encode() for number in range(10)]
    assert texts(prepared(tmp_path), "train") == train
    assert texts(builder, "train", "[:80%]") == train[:8]
    assert texts(builder, "train", "[80%:]") == train[8:]


def test_a_download_that_fails_and_no_such_set(tmp_path, monkeypatch):
    builder = data_sets.downloaded("scientific_papers/arxiv", tmp_path)

    def fail(*_):
        raise AssertionError("no answer from example.org")

    monkeypatch.setattr(builder, "_split_generators", fail)
    message = (
        r"arxiv/1.1.1 could not be downloaded and prepared \(AssertionError: no answer from "
        r"example.org\). .* the folder that holds scientific_papers/arxiv/1.1.1"
    )
    with pytest.raises(OSError, match=message):
        data_sets.prepare(builder)
    assert not (tmp_path / "scientific_papers" / "arxiv" / "1.1.1").exists()
    with pytest.raises(ValueError, match="a set of TensorFlow Datasets. .*wmt14_translate/de-xx'"):
        data_sets.downloaded("wmt14_translate/de-xx")


def test_what_another_process_prepares_is_waited_for_and_prepared_once(
    tmp_path, books, capsys, monkeypatch
):
    first, second = (TextFolder(books, data_dir=tmp_path) for _ in range(2))
    lock = data_sets.files.locked

    def locked_by_the_first(folder, wait):
        assert wait
        first.download_and_prepare()
        return lock(folder, wait)

    monkeypatch.setattr(data_sets.files, "locked", locked_by_the_first)
    assert len(list(data_sets.read(data_sets.prepare(second), "train"))) == 3
    assert "preparing" not in capsys.readouterr().err


def test_identity_and_folder_of_a_split(tmp_path):
    write_articles(tmp_path)
    builder = prepared(tmp_path)
    train, test = (data_sets.identity(builder, split) for split in ("train", "test"))
    assert train["set"] == "scientific_papers/arxiv/1.1.1" and train["examples"] == 10
    assert test["examples"] == 2
    folder = data_sets.packed_folder(builder, "train", train)
    assert folder.parent == tmp_path / "scientific_papers" / "arxiv"
    assert folder.name.startswith("packed-train-")
    assert folder != data_sets.packed_folder(builder, "train", {**train, "examples": 11})
    for use in (data_sets.identity, data_sets.read):
        with pytest.raises(ValueError, match="must be one of train, test .*'validation'"):
            use(builder, "validation")
    builder = argparse.Namespace(data_dir="gs://bucket/unreachable/1.0.0")
    with pytest.raises(ValueError, match="must be a folder on this machine. .*gs://bucket"):
        data_sets.packed_folder(builder, "train", {})


def test_what_splits_are_read_from(tmp_path, books):
    write_articles(tmp_path)
    assert data_sets.source(prepared(tmp_path), "train") == {"scientific_papers/arxiv/1.1.1": True}
    status = (books / "test" / "1.txt").stat()
    found = data_sets.source(TextFolder(books, data_dir=tmp_path), "test")
    assert list(found) == [str(books.resolve() / "test" / name) for name in ("0.txt", "1.txt")]
    assert found[str(books.resolve() / "test" / "1.txt")] == [status.st_size, status.st_mtime_ns]
    # A file that is cut into splits counts whole.
    book = books / "test" / "1.txt"
    found = data_sets.source(TextFile(book, data_dir=tmp_path), "train")
    assert found == {str(book.resolve()): [status.st_size, status.st_mtime_ns]}
