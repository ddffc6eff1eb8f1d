import json

import pytest

from rt_keras.data import load_question_answers
from rt_keras.data.document_source import text_of
from rt_keras.retrieval import build_index, question_passages, read_index, retrieve
from tests.data.checks import write_lines as write
from tests.retrieval import made

QUESTIONS = [
    {"question": "what is blue", "answers": ["sky"], "documents": ["sky"], "passages": ["own"]},
    {"question": "é, is it in the sea?", "documents": ["sea\tsky", "sea"], "negatives": ["not"]},
    {"question": "what rusts", "answers": ["iron", "steel"]},
]


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("index")
    documents = made.write_documents(folder / "documents.jsonl")
    return read_index(build_index(documents, made.make_retriever(), folder / "index"))


@pytest.fixture
def questions(tmp_path):
    folder = tmp_path / "questions"
    for split, lines in (("train", QUESTIONS), ("test", QUESTIONS[:1])):
        write(folder / f"{split}.jsonl", *lines)
    return folder


def found_by(index, questions, output, *numbers):
    """The counts, and the questions of the training split."""
    data_dir = questions / "prepared"
    counts = retrieve(index, "question_folder", questions, output, *numbers, data_dir=data_dir)
    lines = (output / "train.jsonl").read_text(encoding="utf-8").splitlines()
    found = {line["question"]: line for line in map(json.loads, lines)}
    # A prepared data set has an order of its own.
    return counts, [found[question["question"]] for question in QUESTIONS]


@pytest.mark.slow
def test_passages_are_the_best_first_and_negatives_stay(index, questions, tmp_path, monkeypatch):
    # Two batches.
    monkeypatch.setattr(question_passages, "QUESTIONS", 2)
    counts, found = found_by(index, questions, tmp_path / "found", 3)
    assert counts == {"train": 3, "test": 1}
    for line, question in zip(found, QUESTIONS, strict=True):
        (expected,) = index.search([question["question"]], 3)
        assert line["passages"] == [text_of(passage) for passage in expected]
        for name in ("question", "answers", "documents"):
            assert line[name] == question.get(name, [])
    assert [line["negatives"] for line in found] == [[], ["not"], []]
    # A set that can be read.
    (line,) = load_question_answers("question_folder", "test", tmp_path / "found", tmp_path)
    assert [x.decode() for x in line["passages"].numpy()] == found[0]["passages"]


def test_negatives_are_not_of_documents_that_answer(index, questions, tmp_path):
    _, found = found_by(index, questions, tmp_path / "found", 0, 2)
    right = [{"sky"}, {"sky", "sea"}, set()]
    for line, question, documents in zip(found, QUESTIONS, right, strict=True):
        (ranked,) = index.search([question["question"]], len(index.passages))
        wrong = [text_of(x) for x in ranked if x["document"] not in documents]
        assert line["negatives"] == wrong[: len(line["negatives"])]
        assert line["passages"] == question.get("passages", [])
    assert len(found[2]["negatives"]) == 2


@pytest.mark.slow
def test_a_document_of_many_passages_hides_no_negatives(tmp_path):
    lines = [{"id": "long", "text": "the sea is deep " * 60}, {"id": "other", "text": "iron rusts"}]
    documents = made.write_documents(tmp_path / "documents.jsonl", lines)
    index = read_index(build_index(documents, made.make_retriever(), tmp_path / "index"))
    assert len(index.passages) > 20
    line = {"question": "the sea is deep", "documents": ["long"]}
    write(tmp_path / "questions" / "train.jsonl", line)
    where = "question_folder", tmp_path / "questions", tmp_path / "found"
    retrieve(index, *where, 0, 1, data_dir=tmp_path / "prepared")
    found = json.loads((tmp_path / "found" / "train.jsonl").read_text())
    assert found["negatives"] == ["iron rusts"]


def test_wrong_use_is_refused(index, questions, tmp_path):
    for numbers in ((0, 0), (-1, 2), (2, -1)):
        with pytest.raises(ValueError, match="must be at least 0, and one of them above"):
            found_by(index, questions, tmp_path / "found", *numbers)
    with pytest.raises(FileNotFoundError):
        found_by(index, tmp_path / "nothing", tmp_path / "found", 1)
    assert not (tmp_path / "found").exists()
    with pytest.raises(FileExistsError):
        found_by(index, questions, questions, 1)
