import json

import numpy as np
import pytest

from rt_keras import cli
from rt_keras.benchmarks.retrieval import best_weight, bm25, read, scores_of

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
    tests, tuning, passages = read(folder, num_questions=1, num_passages=3)
    words = [passage.split()[5] for passage in passages]
    assert tests == {f"what is the {words[0]}": 0}
    assert set(words[:2]) == {"tree", "rock"} and words[2] in ("sun", "air")
    assert tuning == {f"what is the {words[2]}": 2}


def test_bm25_finds_words(folder):
    tests, _, passages = read(folder, num_questions=5, num_passages=100)
    assert len(passages) == 8
    found = bm25(passages)(list(tests))
    assert found.shape == (2, 8)
    assert found.argmax(axis=1).tolist() == list(tests.values())


@pytest.mark.parametrize("passages", [["a sky", "?", "sea"], ["?", "!"]])
def test_texts_without_words_score_nothing(passages):
    # "the" is too frequent to count.
    found = bm25(passages)(["?", "the", "sky"])
    assert found.shape == (3, len(passages)) and not found[:2].any()
    assert bool(found[2].any()) == (len(passages) > 2)


def test_of_equal_scores_the_right_one_is_last():
    for scores in (np.zeros([2, 3]), np.ones([2, 3])):
        found = scores_of(scores, {"a": 0, "b": 2})
        assert found["recall_at_1"] == 0 and found["mean_reciprocal_rank"] == pytest.approx(1 / 3)


def test_ranks_of_right_passages():
    scores = np.array([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0]])
    found = scores_of(scores, {"a": 0, "b": 0})
    assert found["recall_at_1"] == 0.5 and found["recall_at_5"] == 1.0
    assert found["mean_reciprocal_rank"] == pytest.approx((1 + 1 / 3) / 2)


def test_the_weight_that_ranks_best():
    words, found = np.array([[5.0, 0.0, 4.0]]), np.array([[0.0, 1.0, 1.0]])
    # Alone, either finds another passage or does not decide.
    assert scores_of(words, {"a": 2})["recall_at_1"] == 0.0
    weight = best_weight(words, found, {"a": 2})
    assert scores_of(words + weight * found, {"a": 2})["recall_at_1"] == 1.0
    assert best_weight(words, found, {}) == 1.0


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


def test_without_passages_there_is_nothing_to_rank(tmp_path, capsys):
    for split, answers in (("train", ["so"]), ("validation", []), ("test", [])):
        line = {"question": "why", "answers": answers}
        (tmp_path / f"{split}.jsonl").write_text(json.dumps(line))
    assert run("--data", tmp_path) == 1
    assert "has no test questions with passages or answers" in capsys.readouterr().err
