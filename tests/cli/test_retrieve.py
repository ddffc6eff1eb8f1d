import json

import pytest

from rt_keras.data.document_source import text_of
from rt_keras.retrieval import read_index
from tests.cli.checks import assert_one_line


@pytest.fixture
def questions(tmp_path):
    folder = tmp_path / "questions"
    folder.mkdir()
    line = {"question": "what is blue", "answers": ["sky"], "documents": ["sky"]}
    (folder / "train.jsonl").write_text(json.dumps(line) + "\n")
    return folder


@pytest.fixture
def retrieve(run, retrieval_folder, questions, tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "prepared"))
    command = ["retrieve", "--index", retrieval_folder / "index", "--data", questions]
    return lambda *options: run(*command, "--output", tmp_path / "found", *options)


def test_questions_get_their_passages(retrieve, retrieval_folder, tmp_path):
    options = ["--passages", 2, "--negatives", 1, "--json", tmp_path / "counts.json"]
    status, output, error = retrieve(*options)
    assert status == 0, error
    assert f"wrote {tmp_path / 'found'}: 1 for train\n" in output
    assert json.loads((tmp_path / "counts.json").read_text()) == {"questions": {"train": 1}}
    (line,) = (tmp_path / "found" / "train.jsonl").read_text().splitlines()
    (ranked,) = read_index(retrieval_folder / "index").search(["what is blue"], 99)
    found = json.loads(line)
    assert found["passages"] == [text_of(passage) for passage in ranked[:2]]
    wrong = [text_of(passage) for passage in ranked if passage["document"] != "sky"]
    assert found["negatives"] == wrong[:1]
    status, _, error = retrieve(*options)
    assert_one_line(status, error, "found")


@pytest.mark.parametrize(
    "options, parts",
    [
        ([], ["--passages or --negatives must be above 0"]),
        (["--passages", -1, "--negatives", 2], ["--passages or --negatives must be above 0"]),
        (["--passages", 1, "--data", "nothing"], ["--data is nothing; there is no such folder"]),
        (["--passages", 1, "--index", "nothing"], ["nothing holds no packed data"]),
        (["--passages", 1, "--data", "."], ["train.jsonl"]),
        (["--passages", 1, "--format", "kilt"], ["questions"]),
    ],
)
def test_wrong_use_is_refused_in_one_line(retrieve, tmp_path, monkeypatch, options, parts):
    monkeypatch.chdir(tmp_path)
    status, _, error = retrieve(*options)
    assert_one_line(status, error, *parts)
    assert not (tmp_path / "found").exists()
