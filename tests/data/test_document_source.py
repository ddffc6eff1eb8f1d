import os
import re
from pathlib import Path

import pytest

from rt_keras.data import read_documents
from tests.data.checks import write_lines as write
from tests.data.checks import write_texts

SEA = {"id": "a/sea.txt", "title": "sea", "text": "The sea is blue.\n"}
PAGE = {
    "_id": "12",
    "wikipedia_id": "12",
    "wikipedia_title": "Sky",
    "text": ["Sky\n", "It is blue.\n", "Section::::Colors.\n", "Blue"],
    "anchors": [],
}


def test_the_files_of_a_folder_are_read_in_order_one_after_another(tmp_path):
    texts = {"b.c.txt": "\ufeffcafé\r\n", "a/sea.txt": SEA["text"], "c.md": "no", "a.txt": " \n"}
    write_texts(tmp_path, {**texts, "c.txt": b"caf\xc3\xa9\n\ncaf\xe9\n"})
    empty = []
    documents = read_documents(str(tmp_path), empty)
    assert next(documents) == SEA
    assert next(documents) == {"id": "b.c.txt", "title": "b.c", "text": "café\r\n"}
    assert empty == ["a.txt"]
    with pytest.raises(ValueError, match="c.txt is not UTF-8 text: see line 3"):
        next(documents)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("lines") / "documents.jsonl"


def test_the_knowledge_source_of_kilt(tmp_path):
    # Ids may be numbers.
    other = {"wikipedia_id": 13, "wikipedia_title": "Void", "text": []}
    path = write(tmp_path / "kilt_knowledgesource.json", PAGE, other)
    empty = []
    assert list(read_documents(path, empty)) == [
        {"id": "12", "title": "Sky", "text": "Sky\nIt is blue.\nSection::::Colors.\nBlue"}
    ]
    assert empty == ["13"]


@pytest.mark.parametrize(
    "first, line, problem",
    [
        (SEA, {"id": True, "text": "a"}, "id must be a text that is not empty. Received: true"),
        (SEA, {"id": "a"}, "text must be a text. Received: null"),
        (PAGE, SEA, "wikipedia_title must be a text that is not empty. Received: null"),
        (PAGE, {**PAGE, "text": "a"}, 'text must be a list of texts. Received: "a"'),
    ],
)
def test_lines_that_are_wrong(path, first, line, problem):
    documents = read_documents(write(path, first, line))
    assert next(documents)
    with pytest.raises(ValueError, match=re.escape(f"documents.jsonl, line 2: {problem}")):
        next(documents)


def test_paths_and_names_that_are_wrong_are_refused_at_once(tmp_path):
    with pytest.raises(FileNotFoundError, match="path must be a folder .*, which does not exist"):
        read_documents(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="must hold .txt files"):
        read_documents(tmp_path)
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(ValueError, match="a .jsonl or .json file of JSON lines. .*a.txt'"):
        read_documents(tmp_path / "a.txt")
    (tmp_path / "a.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="a.jsonl has no documents"):
        read_documents(tmp_path / "a.jsonl")
    (tmp_path / "a.jsonl").write_text("text\n")
    with pytest.raises(ValueError, match="a.jsonl, line 1: it is not JSON"):
        read_documents(tmp_path / "a.jsonl")
    write(tmp_path / "a.jsonl", {"id": 7, "text": "a", "url": None})
    assert list(read_documents(tmp_path / "a.jsonl")) == [{"id": "7", "title": "", "text": "a"}]
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt")).write_text("coffee")
    with pytest.raises(ValueError, match="the name of the file .*caf.*txt' is not UTF-8 text"):
        list(read_documents(tmp_path))
