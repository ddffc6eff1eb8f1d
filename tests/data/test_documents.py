import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_keras.data import count_text, load_documents
from tests.data.checks import write_set, write_texts


@pytest.fixture
def folder(tmp_path):
    texts = {"train/a.txt": b"first", "train/b.txt": b"caf\xe9", "test/c.txt": b"caf\xc3\xa9"}
    return {"directory": write_texts(tmp_path / "texts", texts), "data_dir": tmp_path / "tfds"}


def test_folders_and_unknown_sets(folder):
    documents = load_documents("text_folder", "train", **folder)
    assert documents.element_spec == tf.TensorSpec([], tf.string)
    assert sorted(documents.as_numpy_iterator()) == [b"caf\xe9", b"first"]
    with pytest.raises(ValueError, match="python_source, text_folder, .*pg19.* name='books'"):
        load_documents("books", "train")


def test_not_utf8_names_the_file_in_its_split_alone(folder):
    for _ in range(2):  # The second time from what was prepared the first time.
        with pytest.raises(ValueError, match=r"texts/train/b.txt is not UTF-8 .* in train: 1\)"):
            load_documents("text_folder", "train", **folder, require_utf8=True)
    assert len(list(load_documents("text_folder", "test", **folder, require_utf8=True))) == 1


def test_split_that_does_not_exist(folder):
    message = "one of train.* Received: split='validation'. .*texts needs a folder validation of"
    with pytest.raises(ValueError, match=message):
        load_documents("text_folder", "validation", **folder)
    with pytest.raises(ValueError, match="Received: split='tset'$"):
        load_documents("text_folder", "tset", **folder)


def test_pg19_is_the_set_of_tensorflow_datasets(tmp_path):
    keys = ("book_id", "book_title", "publication_date", "book_link")
    book = {"book_text": "A book.", **dict(zip(keys, (7, "B", "1900", "-"), strict=True))}
    write_set("pg19", tmp_path, {"test": [book]})
    documents = load_documents("pg19", "test", data_dir=tmp_path, require_utf8=True)
    assert list(documents.as_numpy_iterator()) == [b"A book."]


@settings(max_examples=10)
@given(st.lists(st.binary(max_size=30) | st.text("a \n\t\x0b\x0c\r\x1cé").map(str.encode)))
def test_counts_are_those_of_python(texts):
    documents = tf.data.Dataset.from_tensor_slices(tf.constant(texts, tf.string, [len(texts)]))
    assert count_text(documents) == {
        "documents": len(texts),
        "bytes": sum(map(len, texts)),
        "words": sum(len(text.split()) for text in texts),
    }
