from pathlib import Path

import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_keras.data import count_text, load_documents

BOOKS = Path(__file__).parents[3] / "shared/data/books"


@pytest.fixture
def folder(tmp_path):
    texts = {"train/a.txt": b"first", "train/b.txt": b"caf\xe9", "test/c.txt": b"caf\xc3\xa9"}
    for name, text in texts.items():
        (tmp_path / "texts" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "texts" / name).write_bytes(text)
    return {"directory": tmp_path / "texts", "data_dir": tmp_path / "tfds"}


def test_text_folder(folder):
    documents = load_documents("text_folder", "train", **folder)
    assert documents.element_spec == tf.TensorSpec([], tf.string)
    assert sorted(documents.as_numpy_iterator()) == [b"caf\xe9", b"first"]


def test_python_source(tmp_path):
    documents = load_documents("python_source", "validation", data_dir=tmp_path)
    assert count_text(documents)["bytes"] > 3e5


def test_order_stays(folder):
    orders = [
        list(load_documents("text_folder", "train", **folder).as_numpy_iterator()) for _ in range(2)
    ]
    assert orders[0] == orders[1]


def test_not_utf8_names_the_file_in_its_split_alone(folder):
    for _ in range(2):  # The second time from what was prepared the first time.
        with pytest.raises(ValueError, match=r"texts/train/b.txt is not UTF-8 .* in train: 1\)"):
            load_documents("text_folder", "train", **folder, require_utf8=True)
    assert len(list(load_documents("text_folder", "test", **folder, require_utf8=True))) == 1


def test_split_that_does_not_exist(folder):
    with pytest.raises(
        ValueError,
        match="one of train.* Received: split='validation'. .*texts needs a folder validation of",
    ):
        load_documents("text_folder", "validation", **folder)
    with pytest.raises(ValueError, match="Received: split='tset'$"):
        load_documents("text_folder", "tset", **folder)


def test_text_file(tmp_path):
    lines = [f"line {number:2}\n".encode() for number in range(20)]
    (tmp_path / "book.txt").write_bytes(b"".join(lines))
    file = {"directory": tmp_path / "book.txt", "data_dir": tmp_path / "tfds"}
    splits = [load_documents("text_file", x, **file) for x in ("train", "validation", "test")]
    assert [list(x.as_numpy_iterator()) for x in splits] == [
        [b"".join(lines[:18])],
        [lines[18]],
        [lines[19]],
    ]


def test_bad_names_and_folders(folder, tmp_path):
    with pytest.raises(
        ValueError, match="python_source, text_folder, text_file, pg19.* Received: name='books'"
    ):
        load_documents("books", "train")
    with pytest.raises(ValueError, match="directory must be the path to read for"):
        load_documents("text_folder", "train")
    with pytest.raises(ValueError, match="must be None for python_source; it is for text_folder"):
        load_documents("python_source", "train", directory=tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_documents("text_folder", "train", directory=tmp_path / "nowhere")


def test_pg19_is_the_set_of_tensorflow_datasets(tmp_path):
    """Writes two books in the format and place of the data set's builder."""
    builder = tfds.builder("pg19", data_dir=tmp_path)
    keys = ("book_id", "book_title", "publication_date", "book_link")
    books = {
        split: tf.data.Dataset.from_tensors(
            {
                "book_text": f"A book to {split}.",
                **dict(zip(keys, (7, "B", "1900", "-"), strict=True)),
            }
        )
        for split in ("train", "test")
    }
    tfds.dataset_builders.store_as_tfds_dataset(
        "pg19",
        version=str(builder.version),
        features=builder.info.features,
        split_datasets=books,
        data_dir=tmp_path,
    )
    documents = load_documents("pg19", "test", data_dir=tmp_path, require_utf8=True)
    assert list(documents.as_numpy_iterator()) == [b"A book to test."]
    with pytest.raises(ValueError, match="one of (test, train|train, test).* split='validation'"):
        load_documents("pg19", "validation", data_dir=tmp_path)


@settings(max_examples=20)
@given(st.lists(st.binary(max_size=30) | st.text("a \n\t\x0b\x0c\r\x1cé").map(str.encode)))
def test_counts_are_those_of_python(texts):
    documents = tf.data.Dataset.from_tensor_slices(tf.constant(texts, tf.string, [len(texts)]))
    assert count_text(documents) == {
        "documents": len(texts),
        "bytes": sum(map(len, texts)),
        "words": sum(len(text.split()) for text in texts),
    }


@pytest.mark.skipif(not BOOKS.is_dir(), reason="needs ../shared/data/books")
def test_books_are_counted_whole(tmp_path):
    for split in ("train", "validation", "test"):
        texts = [path.read_bytes() for path in (BOOKS / split).iterdir()]
        documents = load_documents("text_folder", split, directory=BOOKS, data_dir=tmp_path)
        assert count_text(documents) == {
            "documents": len(texts),
            "bytes": sum(map(len, texts)),
            "words": sum(len(text.split()) for text in texts),
        }
