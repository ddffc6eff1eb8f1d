import numpy as np
import pytest

from rt_keras.analysis import attention_map
from rt_keras.data import ByteTokenizer
from rt_keras.layers import FullHeads, LocalHeads, RoutingHeads
from rt_keras.models import RoutingTransformerCausalLMPreprocessor
from tests.models.checks import make_lm

TEXT, ROUTED = "abé abé abé", "Cluster of assignment 'nearest'"


@pytest.fixture(scope="module")
def maps():
    groups = [[LocalHeads(2, 4), RoutingHeads(1, 2, 4)], [FullHeads(2)]]
    preprocessor = RoutingTransformerCausalLMPreprocessor(ByteTokenizer())
    model = make_lm(preprocessor, vocabulary_size=258, hidden_dim=12, head_groups=groups)
    return attention_map.attention_maps(model, TEXT)


@pytest.mark.slow
def test_every_head_has_weights_of_one_for_each_query_and_none_of_the_future(maps):
    assert maps["tokens"][:5] == ["", "a", "b", "\\xc3", "\\xa9"]
    length = len(TEXT.encode()) + 1
    assert [weights.shape for weights in maps["weights"]] == [
        (3, length, length),
        (2, length, length),
    ]
    assert maps["heads"] == [["Window", "Window", ROUTED], ["Everything"] * 2]
    for weights in maps["weights"]:
        # Queries without keys in their cluster have none.
        sums = weights.sum(-1)
        assert np.all((abs(sums - 1) < 1e-5) | (abs(sums) < 1e-5))
        assert np.all(np.triu(weights, 1) == 0)
    # The second block of four sees itself and the previous block.
    assert np.all(maps["weights"][0][:2, 8:12, :4] == 0)
    assert np.all(maps["weights"][0][:2, 11, 4:12] > 0)


def test_strongest_pairs_are_those_of_enough_weight_far_apart_first(maps):
    least = 0.3
    pairs = attention_map.strongest(maps, 1, 0, least)
    weights = maps["weights"][1][0]
    off = ~np.eye(len(weights), dtype=bool)
    assert len(pairs) == np.sum((weights >= least) & off)
    distances = [pair["query"] - pair["key"] for pair in pairs]
    assert distances == sorted(distances, reverse=True)
    for pair in pairs:
        assert pair["weight"] == weights[pair["query"], pair["key"]]
        assert pair["tokens"][0] == maps["tokens"][pair["query"]]


def test_the_picture_is_written(maps, tmp_path):
    attention_map.draw(maps, tmp_path / "maps.png")
    assert (tmp_path / "maps.png").read_bytes().startswith(b"\x89PNG")
