import pytest

from rt_keras.data import Kilt
from tests.data import test_question_folder
from tests.data.test_question_folder import EMPTY, write


def page(number):
    """A page of provenance in KILT's format, which has more keys."""
    return {"wikipedia_id": number, "title": "a page", "start_paragraph_id": 1, "bleu_score": 0.5}


LINES = [
    {
        "id": "1",
        "input": "Why is the sky blue?",
        "output": [
            {"answer": "Because of the air.", "meta": {"score": 3}},
            {"answer": " Because of the air.\n", "provenance": [page("12")]},
            {"answer": "Rayleigh knows.", "provenance": [page("7"), page("12"), page(" 7 ")]},
            {"provenance": [page(12)]},
            {"answer": ""},
            {"answer": None, "provenance": []},
        ],
        "meta": {},
    },
    {"id": "2", "input": "Why?"},
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


def test_splits_by_the_names_of_kilt(folder):
    for name in ("eli5-train-kilt.jsonl", TEST_FILE, "kilt_knowledgesource.json", "notes.jsonl"):
        write(folder / name, LINES[1])
    assert Kilt(folder).files == {
        "train": ["eli5-train-kilt.jsonl"],
        "validation": ["eli5-dev-kilt.jsonl"],
        "test": [TEST_FILE],
    }
    assert questions(folder, "test") == [{"question": "Why?", **EMPTY}]


def test_folders_of_two_sets_or_of_two_files_for_a_split(folder):
    write(folder / "structured_zeroshot-train-kilt.jsonl", LINES[1])
    with pytest.raises(ValueError, match="one data set of KILT. .*: eli5, structured_zeroshot in"):
        Kilt(folder)
    (folder / "structured_zeroshot-train-kilt.jsonl").unlink()
    for name in (TEST_FILE, "eli5-test-kilt.jsonl"):
        write(folder / name, LINES[1])
    with pytest.raises(ValueError, match=f"the split test. .*: eli5-test-kilt.jsonl, {TEST_FILE}"):
        Kilt(folder)


def test_folders_without_files_of_kilt(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match="must hold files of KILT, such as eli5-train-kilt"):
        Kilt(tmp_path)
    with pytest.raises(FileNotFoundError, match="directory must be a folder"):
        Kilt(folder / "eli5-dev-kilt.jsonl")


@pytest.mark.parametrize(
    "line, problem",
    [
        ({"output": []}, "input must be a text that is not empty. Received: null"),
        # TriviaQA is published without its questions.
        ({"input": ""}, "input must be a text that is not empty"),
        ({"input": "a", "output": {"answer": "b"}}, "output must be a list of objects"),
        ({"input": "a", "output": ["b"]}, r'output must be a list of objects. Received: \["b"\]'),
        ({"input": "a", "output": [{"answer": ["b"]}]}, r'answer must be a text. .*: \["b"\]'),
        ({"input": "a", "output": [{"provenance": "12"}]}, "provenance must be a list of objects"),
        ({"input": "a", "output": [{"provenance": [page(None)]}]}, "must have a wikipedia_id"),
        ({"input": "a", "output": [{"provenance": [{"title": "b"}]}]}, "must have a wikipedia_id"),
    ],
)
def test_lines_that_are_wrong(folder, line, problem):
    write(folder / "eli5-train-kilt.jsonl", LINES[0], line)
    with pytest.raises(ValueError, match=f"eli5-train-kilt.jsonl, line 2: .*{problem}"):
        questions(folder, "validation")
