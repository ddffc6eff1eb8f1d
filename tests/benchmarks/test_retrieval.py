import json

import numpy as np
import pytest

from rt_keras import cli
from rt_keras.benchmarks.retrieval import bm25, fused, read

WORDS = ["sky", "sea", "cat", "dog", "sun", "air", "tree", "rock"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("questions")
    for split, words in (("train", WORDS[:4]), ("validation", WORDS[4:6]), ("test", WORDS[6:])):
        lines = [
            {"question": f"what is the {word}", "passages": [f"It is said that a {word} is here."]}
            for word in words
        ]
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder


def test_passages_of_tests_come_first(folder):
    questions, passages, right = read(folder, num_questions=1, num_passages=4)
    words = [passage.split()[5] for passage in passages]
    assert questions == [f"what is the {words[0]}"] and right == [0]
    assert set(words[:2]) == {"tree", "rock"} and set(words[2:]) == {"sun", "air"}


def test_bm25_finds_words(folder):
    questions, passages, right = read(folder, num_questions=5, num_passages=100)
    assert len(passages) == 8
    found, speeds = bm25(questions, passages, count=3)
    assert found.shape == (2, 3) and found[:, 0].tolist() == right
    assert min(speeds.values()) > 0


def test_fusion_of_rankings():
    found = fused([np.array([[7, 5, 4]]), np.array([[6, 5, 7]])])
    scores = {7: 1 / 61 + 1 / 63, 5: 2 / 62, 6: 1 / 61, 4: 1 / 63}
    assert found[0].tolist() == sorted(scores, key=lambda number: -scores[number])


def run(*words):
    return cli.main(["benchmark", "retrieval", *map(str, words)])


def test_without_retrievers(folder, tmp_path, capsys):
    assert run("--data", folder, "--json", tmp_path / "figures.json") == 0
    assert "2 questions, 8 passages" in capsys.readouterr().out
    (row,) = json.loads((tmp_path / "figures.json").read_text())["figures"]
    assert row["retriever"] == "BM25" and row["recall_at_1"] == 1.0


def test_what_is_wrong(folder, capsys):
    assert run("--data", folder, "--passages", 0) == 1
    assert "error: --passages must be at least 1" in capsys.readouterr().err
    assert run("--data", folder / "nothing") == 1
    assert "rt-keras: error: directory must be a folder" in capsys.readouterr().err
