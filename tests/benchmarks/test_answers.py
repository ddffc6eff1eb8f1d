import json

import pytest

from rt_keras import cli
from rt_keras.benchmarks.answers import _passages, _questions, paraphrases, scores
from rt_keras.data import ByteTokenizer
from rt_keras.layers import LocalHeads
from rt_keras.models import (
    RoutingTransformerBackbone,
    RoutingTransformerEncoderBackbone,
    RoutingTransformerReader,
    RoutingTransformerReaderPreprocessor,
    RoutingTransformerTextEmbedder,
    RoutingTransformerTextEmbedderPreprocessor,
)
from rt_keras.retrieval import build_index

WORDS = ["sky", "sea", "cat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("questions")
    for split in ("train", "test"):
        lines = [
            {
                "question": f"what is the {word} of {split}",
                "answers": [f"a {word} that is very blue"],
                "passages": [f"The {word} is here."],
                "documents": [word],
            }
            for word in WORDS
        ]
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    documents = [{"id": word, "text": f"The {word} is here."} for word in WORDS]
    (folder / "documents.jsonl").write_text("\n".join(map(json.dumps, documents)))
    return folder


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reader")
    backbone = RoutingTransformerBackbone(258, 1, 8, 16, [LocalHeads(2, block_size=8)])
    preprocessor = RoutingTransformerReaderPreprocessor(ByteTokenizer(), 2, 20, 30, 12)
    RoutingTransformerReader(backbone, preprocessor).save_to_preset(folder)
    return folder


def run(*words):
    return cli.main(["benchmark", "answers", *map(str, words)])


def test_paraphrases_share_most_words():
    others = ["what is the sky", "who sat on the mat"]
    assert paraphrases(["what is this sky", "why"], others) == 0.5
    assert paraphrases(["why"], []) == 0.0
    # Questions without words.
    assert paraphrases(["why"], ["?", "!"]) == paraphrases(["?"], ["why", "who"]) == 0.0


def test_scores_of_documents_need_documents():
    tests = [{"answers": ["a sky"], "documents": ["sky"]}]
    assert sorted(scores(["a sky"], tests)) == ["exact_match", "f1", "rouge_l"]
    found = scores(["a sky"], tests, [["sea", "sky"]])
    assert (found["f1"], found["kilt_f1"], found["r_precision"]) == (1.0, 0.0, 0.0)
    assert found["recall_at_5"] == 1.0


@pytest.mark.end_to_end
@pytest.mark.parametrize("with_index", [False, True])
def test_the_table_has_all_controls(reader, folder, tmp_path, capsys, with_index):
    index = []
    if with_index:
        backbone = RoutingTransformerEncoderBackbone(259, 1, 8, 16, [LocalHeads(2, block_size=8)])
        preprocessor = RoutingTransformerTextEmbedderPreprocessor(ByteTokenizer(), 40)
        retriever = RoutingTransformerTextEmbedder(backbone, preprocessor)
        build_index(folder / "documents.jsonl", retriever, tmp_path / "index")
        index = ["--index", tmp_path / "index"]
    words = ["--model", reader, "--data", folder, *index, "--json", tmp_path / "figures.json"]
    assert run(*words) == 0, capsys.readouterr().err
    assert "have a paraphrase in training" in capsys.readouterr().out
    rows = json.loads((tmp_path / "figures.json").read_text())["figures"]
    assert [row["answer"] for row in rows] == [
        "reader, its passages",
        "reader, random passages",
        "reader, no passages",
        "the question",
        "a random training answer",
        "the longest training answer",
    ]
    assert all(row["nats_per_token"] > 0 for row in rows[:3])
    assert ("r_precision" in rows[0]) == with_index and "r_precision" not in rows[1]


def test_blank_answers_do_not_count(tmp_path):
    lines = [{"question": "why", "answers": [" ", "so"]}, {"question": "who", "answers": [""]}]
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (question,) = _questions(tmp_path, "test")
    assert (question["question"], question["answers"]) == ("why", ["so"])


def test_random_passages_are_those_of_another_question(reader, folder, capsys):
    tests = [{"passages": [word]} for word in WORDS]
    for count in (2, 3):
        own, others, none = _passages(tests[:count], seed=0, count=2)
        assert own == [[word, ""] for word in WORDS[:count]]
        assert sorted(others) == sorted(own) and all(x != y for x, y in zip(own, others))
        assert none == [["", ""]] * count
    assert run("--model", reader, "--data", folder, "--questions", 1) == 1
    assert "at least 2 questions with answers are needed" in capsys.readouterr().err


def test_what_is_wrong(reader, folder, capsys):
    assert run("--model", reader, "--data", folder, "--top-p", 2) == 1
    assert "--top-p must be from 0 to 1" in capsys.readouterr().err
