import json

import pytest

from rt_keras.data import QuestionFolder
from tests.data.checks import prepared

WHOLE = {
    "question": "Why is the sky blue?",
    "answers": ["Air scatters blue light more.", "It does – ask Rayleigh."],
    "passages": ["a\tb\nc", ""],
    "negatives": ["The sea is blue."],
    "documents": ["sky.txt", "air.txt\tlight.txt"],
}
EMPTY = {"answers": [], "passages": [], "negatives": [], "documents": []}


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "questions"
    folder.mkdir()
    write(folder / "train.jsonl", WHOLE, {"question": "Why?"})
    return folder


def write(path, *lines):
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")


def questions(folder, split="train", cls=QuestionFolder):
    examples = map(decoded, prepared(cls(folder, data_dir=folder.parent / "prepared"))[split])
    return sorted(examples, key=lambda example: example["question"])


def decoded(example):
    """A question with strings instead of arrays of bytes."""
    lists = {name: [text.decode() for text in example[name].tolist()] for name in EMPTY}
    return {"question": example["question"].decode(), **lists}


def test_questions_come_back_whole(folder):
    assert questions(folder) == [WHOLE, {"question": "Why?", **EMPTY}]


@pytest.mark.parametrize(
    "line, problem",
    [
        ("{}", "line 3: question must be a text that is not empty. Received: null"),
        ('{"title": "a", "answer": "b"}', "line 3: its keys must be .*. Received: answer, title"),
        ('{"question": "How?", "answers": "so"}', 'line 3: answers must be a list of .* "so"'),
    ],
)
def test_lines_that_are_wrong_leave_nothing_behind(folder, line, problem):
    (folder / "test.jsonl").write_text('{"question": "Why?"}\n\n' + line)
    with pytest.raises(ValueError, match=f"test.jsonl, {problem}"):
        questions(folder)
    (folder / "test.jsonl").write_text("\n \n")
    with pytest.raises(ValueError, match="test.jsonl has no questions"):
        questions(folder)
    write(folder / "test.jsonl", {"question": "café"})
    assert list(QuestionFolder(folder).files) == ["train", "test"]
    assert questions(folder, "test") == [{"question": "café", **EMPTY}]


def test_a_folder_without_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="must hold train.jsonl or validation.jsonl or"):
        QuestionFolder(tmp_path)
