import json

import pytest
import tensorflow_datasets as tfds

from rt_keras.data import QuestionFolder

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
    builder = cls(folder, data_dir=folder.parent / "prepared")
    builder.download_and_prepare()
    examples = [decoded(x) for x in tfds.as_numpy(builder.as_dataset(split=split))]
    return sorted(examples, key=lambda example: example["question"])


def decoded(example):
    """A question with strings instead of arrays of bytes."""
    lists = {name: [text.decode() for text in example[name].tolist()] for name in EMPTY}
    return {"question": example["question"].decode(), **lists}


def test_questions_come_back_whole(folder):
    assert questions(folder) == [WHOLE, {"question": "Why?", **EMPTY}]


def test_splits_are_those_that_have_files(folder):
    write(folder / "validation.jsonl", {"question": "How?"})
    assert list(QuestionFolder(folder).files) == ["train", "validation"]
    assert questions(folder, "validation") == [{"question": "How?", **EMPTY}]
    with pytest.raises(ValueError, match="Unknown split"):
        questions(folder, "test")


def test_a_folder_that_changed_is_read_anew(folder):
    assert len(questions(folder)) == 2
    write(folder / "train.jsonl", {"question": "How?"})
    assert questions(folder) == [{"question": "How?", **EMPTY}]


@pytest.mark.parametrize(
    "line, problem",
    [
        ('{"question": "How?"', "it is not JSON"),
        ("[]", "it must be a JSON object"),
        ("{}", "question must be a text that is not empty. Received: null"),
        ('{"question": " "}', 'question must be a text that is not empty. Received: " "'),
        ('{"question": ["How?"]}', "question must be a text"),
        (
            '{"question": "How?", "title": "a", "answer": "so"}',
            "its keys must be question, answers, passages, negatives, documents. "
            "Received: answer, title",
        ),
        ('{"question": "How?", "answers": "so"}', 'answers must be a list of texts. .* "so"'),
        ('{"question": "How?", "documents": [12]}', "documents must be a list of texts. .*12"),
        ('{"question": "How?", "passages": null}', "passages must be a list of texts. .*null"),
    ],
)
def test_lines_that_are_wrong(folder, line, problem):
    (folder / "test.jsonl").write_text('{"question": "Why?"}\n\n' + line)
    with pytest.raises(ValueError, match=f"test.jsonl, line 3: {problem}"):
        questions(folder)


def test_nothing_is_left_of_a_folder_that_was_wrong(folder):
    (folder / "test.jsonl").write_bytes(b'{"question": "caf\xe9"}')
    with pytest.raises(ValueError, match="test.jsonl, line 1: it is not UTF-8 text"):
        questions(folder)
    write(folder / "test.jsonl", {"question": "café"})
    assert questions(folder, "test") == [{"question": "café", **EMPTY}]


def test_files_without_questions(folder):
    (folder / "test.jsonl").write_text("\n \n")
    with pytest.raises(ValueError, match="test.jsonl has no questions"):
        questions(folder)


def test_folders_without_files(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match="directory must be a folder.*train.jsonl'"):
        QuestionFolder(folder / "train.jsonl")
    with pytest.raises(FileNotFoundError, match="must hold train.jsonl or validation.jsonl or"):
        QuestionFolder(tmp_path)
