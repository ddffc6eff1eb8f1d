import pytest

from rt_keras.data import Kilt, QuestionFolder
from tests.data.checks import prepared
from tests.data.checks import write_lines as write

WHOLE = {
    "question": "Why is the sky blue?",
    "answers": ["Air scatters blue light more.", "It does – ask Rayleigh."],
    "passages": ["a\tb\nc", ""],
    "negatives": ["The sea is blue."],
    "documents": ["sky.txt", "air.txt\tlight.txt"],
}
EMPTY = {"answers": [], "passages": [], "negatives": [], "documents": []}


def questions(folder, split="train", cls=QuestionFolder):
    examples = map(decoded, prepared(cls(folder, data_dir=folder.parent / "prepared"))[split])
    return sorted(examples, key=lambda example: example["question"])


def decoded(example):
    """A question with strings instead of arrays of bytes."""
    lists = {name: [text.decode() for text in example[name].tolist()] for name in EMPTY}
    return {"question": example["question"].decode(), **lists}


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "questions" / "train.jsonl", WHOLE, {"question": "Why?"})
    return tmp_path / "questions"


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
    assert questions(folder, "test") == [{"question": "café", **EMPTY}]


def test_a_folder_without_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="must hold train.jsonl or validation.jsonl or"):
        QuestionFolder(tmp_path)


# === KILT ===


def page(number):
    """A page of provenance in KILT's format, which has more keys."""
    return {"wikipedia_id": number, "title": "a page", "start_paragraph_id": 1, "bleu_score": 0.5}


KILT_LINES = [
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


@pytest.fixture
def kilt(tmp_path):
    write(tmp_path / "eli5" / "eli5-dev-kilt.jsonl", *KILT_LINES)
    return tmp_path / "eli5"


def test_answers_and_sets_of_pages_of_kilt_are_distinct(kilt):
    sky = {
        "question": "Why is the sky blue?",
        "answers": ["Because of the air.", "Rayleigh knows."],
        "documents": ["12", "7\t12", ""],
    }
    assert questions(kilt, "validation", Kilt) == [EMPTY | sky, {"question": "Why?", **EMPTY}]


def test_splits_by_the_names_of_kilt_in_folders_of_one_set(kilt, tmp_path):
    test_file = "eli5-test_without_answers-kilt.jsonl"
    for name in ("eli5-train-kilt.jsonl", test_file, "kilt_knowledgesource.json", "notes.jsonl"):
        write(kilt / name, KILT_LINES[1])
    splits = {"train": ["eli5-train-kilt.jsonl"], "validation": ["eli5-dev-kilt.jsonl"]}
    assert Kilt(kilt).files == {**splits, "test": [test_file]}
    assert questions(kilt, "test", Kilt) == [{"question": "Why?", **EMPTY}]
    write(kilt / "eli5-test-kilt.jsonl", KILT_LINES[1])
    with pytest.raises(ValueError, match=f"eli5 test, not eli5-test-kilt.jsonl and {test_file}"):
        Kilt(kilt)
    (kilt / test_file).unlink()
    write(kilt / "structured_zeroshot-train-kilt.jsonl", KILT_LINES[1])
    with pytest.raises(ValueError, match="one data set of KILT, not eli5, structured_zeroshot. "):
        Kilt(kilt)
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
def test_lines_of_kilt_that_are_wrong(kilt, line, problem):
    write(kilt / "eli5-train-kilt.jsonl", KILT_LINES[0], line)
    with pytest.raises(ValueError, match=f"eli5-train-kilt.jsonl, line 2: .*{problem}"):
        questions(kilt, "validation", Kilt)
