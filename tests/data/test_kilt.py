import pytest

from rt_keras.data import Kilt
from tests.data import test_question_folder
from tests.data.test_question_folder import EMPTY, write


def page(number):
    """A page of provenance in KILT's format, which has more keys."""
    return {"wikipedia_id": number, "title": "a page", "start_paragraph_id": 1, "bleu_score": 0.5}


LINES = [
    {
        "input": "Why is the sky blue?",
        "output": [
            {"answer": "Because of the air.", "meta": {"score": 3}},
            {"answer": " Because of the air.\n", "provenance": [page("12")]},
            {"answer": "Rayleigh knows.", "provenance": [page("7"), page("12"), page(" 7 ")]},
            {"provenance": [page(12)]},
            {"answer": ""},
            {"answer": None, "provenance": []},
        ],
    },
    {"input": "Why?"},
]
TEST_FILE = "eli5-test_without_answers-kilt.jsonl"


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "eli5"
    folder.mkdir()
    write(folder / "eli5-dev-kilt.jsonl", *LINES)
    return folder


def questions(folder, split):
    return test_question_folder.questions(folder, split, Kilt)


def test_answers_and_sets_of_pages_are_distinct(folder):
    assert questions(folder, "validation") == [
        {
            **EMPTY,
            "question": "Why is the sky blue?",
            "answers": ["Because of the air.", "Rayleigh knows."],
            "documents": ["12", "7\t12", ""],
        },
        {"question": "Why?", **EMPTY},
    ]


def test_splits_by_the_names_of_kilt_in_folders_of_one_set(folder, tmp_path):
    for name in ("eli5-train-kilt.jsonl", TEST_FILE, "kilt_knowledgesource.json", "notes.jsonl"):
        write(folder / name, LINES[1])
    splits = {"train": ["eli5-train-kilt.jsonl"], "validation": ["eli5-dev-kilt.jsonl"]}
    assert Kilt(folder).files == {**splits, "test": [TEST_FILE]}
    assert questions(folder, "test") == [{"question": "Why?", **EMPTY}]
    write(folder / "eli5-test-kilt.jsonl", LINES[1])
    with pytest.raises(ValueError, match=f"eli5 test, not eli5-test-kilt.jsonl and {TEST_FILE}"):
        Kilt(folder)
    (folder / TEST_FILE).unlink()
    write(folder / "structured_zeroshot-train-kilt.jsonl", LINES[1])
    with pytest.raises(ValueError, match="one data set of KILT, not eli5, structured_zeroshot. "):
        Kilt(folder)
    with pytest.raises(FileNotFoundError, match="must hold files of KILT, such as eli5-train-kilt"):
        Kilt(tmp_path)


@pytest.mark.parametrize(
    "line, problem",
    [
        # TriviaQA is published without its questions.
        ({"input": ""}, "input must be a text that is not empty"),
        ({"input": "a", "output": ["b"]}, r'output must be a list of objects. Received: \["b"\]'),
        ({"input": "a", "output": [{"answer": ["b"]}]}, r'answer must be a text. .*: \["b"\]'),
        ({"input": "a", "output": [{"provenance": [page(None)]}]}, "must have a wikipedia_id"),
    ],
)
def test_lines_that_are_wrong(folder, line, problem):
    write(folder / "eli5-train-kilt.jsonl", LINES[0], line)
    with pytest.raises(ValueError, match=f"eli5-train-kilt.jsonl, line 2: .*{problem}"):
        questions(folder, "validation")
