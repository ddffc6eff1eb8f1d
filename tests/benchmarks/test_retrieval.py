import json

import pytest

from rt_keras import cli
from rt_keras.benchmarks.retrieval import bm25, read

WORDS = {"train": ["sky", "sea", "cat", "dog"], "validation": ["sun", "air"]}
WORDS["test"] = ["tree", "rock"]


@pytest.mark.weekly
def test_bm25_finds_the_passages_of_tests_which_come_first(tmp_path, capsys):
    for split, words in WORDS.items():
        texts = {word: f"It is said that a {word} is here." for word in words}
        lines = [{"question": f"what is the {x}", "passages": [text]} for x, text in texts.items()]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    tests, tuning, passages = read(tmp_path, num_questions=1, num_passages=3)
    words = [passage.split()[5] for passage in passages]
    assert tests == {f"what is the {words[0]}": 0} and tuning == {f"what is the {words[2]}": 2}
    assert set(words[:2]) == {"tree", "rock"} and words[2] in ("sun", "air")
    path = tmp_path / "figures.json"
    command = ["benchmark", "retrieval", "--data", str(tmp_path)]
    assert cli.main([*command, "--json", str(path)]) == 0
    assert "2 questions, 8 passages" in capsys.readouterr().out
    (row,) = json.loads(path.read_text())["figures"]
    assert row["retriever"] == "BM25" and row["recall_at_1"] == 1.0
    assert cli.main([*command, "--passages", "0"]) == 1
    assert "error: --passages must be at least 1" in capsys.readouterr().err
    # "the" is too frequent to count, and texts without words score nothing.
    found = bm25(["a sky", "?", "sea"])(["?", "the", "sky"])
    assert found.shape == (3, 3) and not found[:2].any() and found[2].any()
