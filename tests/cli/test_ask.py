import json

import pytest

from rt_keras.cli import ask
from rt_keras.data.document_source import text_of
from rt_keras.retrieval import read_index
from rt_keras.training.experiment import load_model

QUESTIONS = ["what is blue?", "who eats squid?"]


@pytest.fixture
def ask_with(run, retrieval_folder, tmp_path):
    """Runs the command; returns the values that it writes, and its output."""

    def ask_with(*options, reader=True):
        model = ["--model", retrieval_folder / "reader"] if reader else []
        path = tmp_path / "answers.json"
        command = ["ask", "--index", retrieval_folder / "index", *model, "--json", path]
        status, output, error = run(*command, *options)
        assert status == 0, error
        return json.loads(path.read_text())["answers"], output

    return ask_with


@pytest.fixture(scope="module")
def index(retrieval_folder):
    return read_index(retrieval_folder / "index")


def answers_of(folder, questions, passages):
    """The likeliest answers to questions from the passages of each."""
    reader = load_model(folder / "reader")
    reader.compile(sampler="greedy")
    return [
        "".join(reader.stream_answer(question, reader.read_passages(list(map(text_of, found)))))
        for question, found in zip(questions, passages)
    ]


@pytest.mark.slow
def test_each_question_has_an_answer_from_its_sources_or_from_those_kept(
    ask_with, index, retrieval_folder
):
    found, output = ask_with(*QUESTIONS, "--top-p", 0)
    passages = index.search(QUESTIONS, 2)
    answers = answers_of(retrieval_folder, QUESTIONS, passages)
    for line, question, answer, sources in zip(found, QUESTIONS, answers, passages, strict=True):
        assert (line["question"], line["answer"]) == (question, answer)
        assert [x["text"] for x in line["sources"]] == [x["text"] for x in sources]
        assert set(line["sources"][0]) == {"document", "title", "text", "score"}
        first = sources[0]
        shown = f"{answer}\n[1] {first['document']} ({first['score']:.2f}): {first['text']}"
        assert shown in output
    found, _ = ask_with(*QUESTIONS, "--top-p", 0, "--keep-passages")
    passages = index.search(QUESTIONS[:1], 2) * 2
    assert [line["sources"] for line in found] == [found[0]["sources"]] * 2
    assert [x["text"] for x in found[1]["sources"]] == [x["text"] for x in passages[0]]
    answers = answers_of(retrieval_folder, QUESTIONS, passages)
    assert [line["answer"] for line in found] == answers


@pytest.mark.slow
def test_without_a_reader_the_passages_are_printed(ask_with, index, monkeypatch):
    monkeypatch.setattr(ask, "SHOWN", 10)
    # There are fewer than are wanted.
    (line,), output = ask_with(QUESTIONS[0], "--passages", 999, reader=False)
    (passages,) = index.search(QUESTIONS[:1], 999)
    assert line["answer"] is None
    assert [x["text"] for x in line["sources"]] == [x["text"] for x in passages]
    best = passages[0]
    shown = f"{' '.join(best['text'].split())[:10]}..."
    assert f"[1] {best['document']} ({best['score']:.2f}): {shown}\n" in output
