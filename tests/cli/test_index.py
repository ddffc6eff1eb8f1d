import json

import pytest

from rt_keras.retrieval import read_index


@pytest.mark.slow
def test_an_index_is_built_once(run, retrieval_folder, tmp_path):
    command = ["index", "--documents", retrieval_folder / "documents.jsonl"]
    command += ["--retriever", retrieval_folder / "retriever", "--output", tmp_path / "index"]
    command += ["--passage-length", 20, "--overlap", 5, "--json", tmp_path / "index.json"]
    status, output, error = run(*command)
    assert status == 0, error
    found = json.loads((tmp_path / "index.json").read_text())
    passages = read_index(tmp_path / "index").passages
    assert found["index"] == str(tmp_path / "index") and found["passages"] == len(passages) > 6
    files = list((tmp_path / "index").glob("*.npz"))
    assert found["bytes"] == sum(path.stat().st_size for path in files)
    assert f"the index {tmp_path / 'index'} has {len(passages)} passages: " in output
    assert run(*command)[:2] == (0, output)
