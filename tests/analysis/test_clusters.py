import json

import numpy as np
import pytest

from rt_keras.analysis import clusters
from rt_keras.data import ByteTokenizer
from rt_keras.layers import LocalHeads, RoutingHeads
from rt_keras.layers.attention_calls import attention_calls
from tests.models.checks import make_lm

TOKENIZER = ByteTokenizer()


def model_with(*groups):
    return make_lm(vocabulary_size=258, num_layers=1, head_groups=list(groups))


def tokens_of(*texts):
    return np.stack([TOKENIZER(text).numpy() for text in texts])


def test_every_head_with_clusters_is_found_with_its_clusters():
    groups = [RoutingHeads(2, 3, 4, share_qk=True), LocalHeads(1, 4), RoutingHeads(1, 2, 4)]
    model, sequences = model_with(*groups), tokens_of("abcdefghij", "the rose. ")
    found = clusters.find(model, sequences)
    assert [(head["head"], head["of"], head["num_clusters"]) for head in found] == [
        (0, "queries", 3),
        (1, "queries", 3),
        (3, "queries", 2),
        (3, "keys", 2),
    ]
    inputs = {"token_ids": sequences[1:], "padding_mask": np.ones([1, 10])}
    (call,) = attention_calls(model, inputs)
    (_, _, shared), (_, _, separate) = call.clusters()
    np.testing.assert_array_equal(found[1]["clusters"][1], shared["queries"][0, 1])
    np.testing.assert_array_equal(found[3]["clusters"][1], separate["keys"][0, 0])
    assert found[0]["clusters"].shape == (2, 10)
    with pytest.raises(ValueError, match="heads with clusters, such as RoutingHeads"):
        clusters.find(model_with(LocalHeads(2, 4)), tokens_of("abcd"))


@pytest.fixture
def head():
    """A head with four clusters, every e in cluster 2 and all other tokens in cluster 0."""
    sequences = tokens_of("the theme: here ", "every letter e. ")
    assigned = np.where(sequences == ord("e") + 2, 2, 0)
    head = {"layer": "a/b", "head": 1, "kind": "RoutingHeads", "of": "keys", "num_clusters": 4}
    return {**head, "clusters": assigned}, sequences


def test_sizes_and_contents_of_clusters(head):
    (figures,) = clusters.measure([head[0]], head[1], TOKENIZER)["heads"]
    # 10 of the 32 bytes.
    assert figures["loads"] == pytest.approx([22 / 8, 0, 10 / 8, 0]) and figures["empty"] == 2
    shares = np.array([22, 10]) / 32
    assert figures["entropy"] == pytest.approx(-np.sum(shares * np.log(shares)) / np.log(4))
    assert figures["contents"][1] == figures["contents"][3] == []
    assert figures["contents"][2] == [
        {"token": "e", "before": "", "count": 10, "ratio": pytest.approx(3.2)}
    ]
    others = figures["contents"][0]
    assert {content["token"] for content in others} == {" ", "h", "r", "t"}
    assert all(content["ratio"] == pytest.approx(32 / 22) for content in others)
    counts = [content["count"] for content in others]
    assert counts == sorted(counts, reverse=True)
    json.dumps(figures)


def test_rare_tokens_say_nothing():
    sequences = tokens_of("abab zz qq")
    assert clusters.contents(sequences, sequences > 0, TOKENIZER) == []
    assert clusters.contents(sequences, sequences == ord("z") + 2, TOKENIZER) == []


def test_the_report_has_the_fullest_clusters_first(head):
    text = clusters.report(clusters.measure([head[0]], head[1], TOKENIZER))
    heading, columns, first, second, *rest = text.splitlines()
    assert heading == (
        "a/b, head 1 (RoutingHeads), keys: entropy 0.45 of 1, 2 of 4 clusters empty:"
    )
    assert columns.split()[:2] == ["cluster", "load"] and len(rest) == 2
    assert first.split()[:2] == ["0", "2.75"] and second.split()[:2] == ["2", "1.25"]
    assert "e 3.2x" in second and "[␣] 1.5x" in first
