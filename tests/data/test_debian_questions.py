import collections
import json
from pathlib import Path

import pytest

from rt_keras.data import debian_questions
from rt_keras.data.question_folder import QuestionFolder
from rt_keras.data.text_folder import SPLITS, split_of

LONG = (
    "It is long enough to be kept, as it describes more than one line of a list would, at length."
)
# Enough for three splits.
COUNT = 40


def question(number, **changes):
    values = {"id": f"doc/{number}", "title": "T", "text": "Tä\n\nx", "answer": "A"}
    return {**values, "question": f"Why {number}?", **changes}


@pytest.fixture
def source(tmp_path):
    """A list of packages."""
    path = tmp_path / "list"
    paragraphs = [
        f"Package: p{n}\nDescription: Short {n}\n Number {n} is naïve.\n .\n {LONG}\n"
        for n in range(COUNT)
    ]
    path.write_text("\n".join([*paragraphs, "Package: z\nDescription: Tiny\n x\n"]), "utf-8")
    return path


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def run(capsys, *arguments):
    status = debian_questions.main(list(map(str, arguments)))
    return status, *capsys.readouterr()


def test_questions_and_documents_are_written(source, tmp_path, capsys):
    out = tmp_path / "out"
    status, output, _ = run(capsys, "packages", out, "--source", source)
    splits = {split: read(out / f"{split}.jsonl") for split in SPLITS}
    counts = ", ".join(f"{split} {len(splits[split])}" for split in SPLITS)
    assert (status, output) == (
        0,
        f"{counts} questions\n{COUNT} documents\n"
        "left out: 1 with a long description not of 100 to 10,000 characters\n",
    )
    text = f"Number 7 is naïve.\n\n{LONG}"
    line = {"question": "Short 7", "answers": [text], "passages": [text], "documents": ["p7"]}
    assert line in splits[split_of("p7")]
    documents = read(out / "documents.jsonl")
    assert {"id": "p7", "title": "", "text": text} in documents
    assert len(documents) == COUNT == sum(map(len, splits.values()))


def test_the_document_assigns_the_split(source, tmp_path, capsys):
    run(capsys, "packages", tmp_path / "out", "--source", source)
    for split in SPLITS:
        for line in read(tmp_path / "out" / f"{split}.jsonl"):
            assert [split_of(name) for name in line["documents"]] == [split]


def test_the_folder_is_read_as_a_data_set(source, tmp_path, capsys):
    run(capsys, "packages", tmp_path / "out", "--source", source)
    builder = QuestionFolder(tmp_path / "out", data_dir=tmp_path / "prepared")
    builder.download_and_prepare()
    found = [
        (example["question"].decode(), example["documents"].tolist())
        for split in SPLITS
        for example in builder.as_dataset(split=split).as_numpy_iterator()
    ]
    assert sorted(found) == sorted((f"Short {n}", [f"p{n}".encode()]) for n in range(COUNT))


def test_a_split_without_questions_has_no_file(tmp_path):
    counts = debian_questions.write_folder([question(1)], tmp_path / "out")
    split = split_of("doc/1")
    assert counts[split] == counts.total() == 1
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == sorted(["documents.jsonl", f"{split}.jsonl"])


def test_a_limit_chooses_questions_by_their_hashes():
    found = [question(number) for number in range(30)]
    left_out = collections.Counter()
    some = debian_questions.chosen(iter(found), 10, left_out)
    assert len(some) == 10 and some != found[:10] and [x for x in found if x in some] == some
    assert left_out == {"over the limit": 20}
    more = debian_questions.chosen(iter(found), 11, left_out)
    assert all(x in more for x in some)
    assert debian_questions.chosen(iter(found), 30, left_out) == found


def test_a_question_is_kept_once():
    left_out = collections.Counter()
    found = [question(1), question(2, question="WHY 1?"), question(3)]
    assert debian_questions.chosen(found, None, left_out) == [found[0], found[2]]
    assert left_out == {debian_questions.TWICE: 1}


def test_the_limit_is_an_option(source, tmp_path, capsys):
    status, output, _ = run(capsys, "packages", tmp_path / "out", "--source", source, "--limit", 3)
    assert status == 0 and "3 documents" in output and f"{COUNT - 3} over the limit" in output


@pytest.mark.parametrize(
    "name, message",
    [
        ("packages", "nowhere has no lists with long descriptions; run apt-get update"),
        ("docstrings", "directory must exist"),
        ("glosses", "data.noun does not exist; install wordnet-base\n"),
        ("faq", "has no pages; install anarchism\n"),
    ],
)
def test_a_missing_package_is_named(name, message, tmp_path, capsys):
    option = "--source" if name in ("packages", "docstrings") else "--share"
    status, output, error = run(capsys, name, tmp_path / "out", option, tmp_path / "nowhere")
    assert (status, output) == (1, "")
    last = error.splitlines(keepends=True)[-1]
    assert last.startswith("error: ") and message in last
    assert not (tmp_path / "out").exists()


def test_no_questions_are_an_error(tmp_path, capsys):
    source = tmp_path / "list"
    source.write_text("Package: z\nDescription: Tiny\n x\n")
    status, _, error = run(capsys, "packages", tmp_path / "out", "--source", source)
    assert status == 1 and error.endswith("error: no questions are found; all are left out\n")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["packages", "--limit", "0"], "--limit must be at least 1. Received: 0"),
        (["faq", "--source", "x"], "--source is for packages and docstrings; use --share"),
        (["poems"], "invalid choice: 'poems'"),
    ],
)
def test_wrong_options(arguments, message, tmp_path, capsys):
    name, *options = arguments
    with pytest.raises(SystemExit):
        debian_questions.main([name, str(tmp_path / "out"), *options])
    assert message in capsys.readouterr().err


def test_a_folder_that_exists_is_not_written_to(source, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "own.txt").write_text("mine")
    status, output, error = run(capsys, "packages", tmp_path / "out", "--source", source)
    assert (status, output) == (1, "") and "already exists; name a new or an empty folder" in error
    assert [path.name for path in Path(tmp_path, "out").iterdir()] == ["own.txt"]
