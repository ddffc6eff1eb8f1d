import json

import pytest

from rt_keras.data.document_source import text_of
from rt_keras.retrieval import read_index
from tests.cli.checks import assert_one_line


@pytest.mark.weekly
def test_questions_get_their_passages(run, retrieval_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "prepared"))
    line = {"question": "what is blue", "answers": ["sky"], "documents": ["sky"]}
    (tmp_path / "train.jsonl").write_text(json.dumps(line) + "\n")
    command = ["retrieve", "--index", retrieval_folder / "index", "--data", tmp_path]
    command += ["--output", tmp_path / "found"]
    assert_one_line(*run(*command)[::2], "--passages or --negatives must be above 0")
    status, output, error = run(*command, "--passages", 2, "--negatives", 1)
    assert status == 0, error
    assert f"wrote {tmp_path / 'found'}: 1 for train\n" in output
    found = json.loads((tmp_path / "found" / "train.jsonl").read_text())
    (ranked,) = read_index(retrieval_folder / "index").search(["what is blue"], 99)
    assert found["passages"] == [text_of(passage) for passage in ranked[:2]]
    wrong = [text_of(passage) for passage in ranked if passage["document"] != "sky"]
    assert found["negatives"] == wrong[:1]
