import collections
import math

import numpy as np
import pytest

from rt_keras.analysis import heads
from rt_keras.layers import FullHeads, LocalHeads, RoutingHeads
from rt_keras.layers.attention_calls import attention_calls
from rt_keras.layers.head_divergence import head_divergences, pairs_by_kind
from rt_keras.models import RoutingTransformerSeq2SeqBackbone
from tests.models.checks import inputs, make_backbone, random_tokens

ROUTED = "Cluster of assignment 'nearest'"


def backbone(*groups):
    return make_backbone(num_layers=len(groups), head_groups=list(groups))


def batch(seed, length=10):
    return inputs(random_tokens(1, length, seed))


@pytest.mark.slow
def test_means_and_deviations_are_over_all_positions_of_all_batches():
    model = backbone([RoutingHeads(2, 2, 3), LocalHeads(2, 3)], [LocalHeads(1, 3), FullHeads(1)])
    batches = [batch(0, 6), batch(1, 6)]
    figures = heads.measure(model, batches)
    expected = collections.defaultdict(list)
    for call in (call for x in batches for call in attention_calls(model, x)):
        for kinds, pairs in pairs_by_kind(call.kinds).items():
            expected[call.name, *kinds] += head_divergences(call, pairs).ravel().tolist()
    assert figures["upper_bound"] == math.log(2)
    assert {(row["layer"], *row["kinds"]): row["pairs"] for row in figures["divergences"]} == {
        ("transformer_block_0/attention", ROUTED, ROUTED): 1,
        ("transformer_block_0/attention", ROUTED, "Window"): 4,
        ("transformer_block_0/attention", "Window", "Window"): 1,
        ("transformer_block_1/attention", "Everything", "Window"): 1,
    }
    for row in figures["divergences"]:
        values = [x for x in expected[row["layer"], *row["kinds"]] if not math.isnan(x)]
        assert row["positions"] == len(values) > 0
        assert row["mean"] == pytest.approx(np.mean(values), abs=1e-6)
        assert row["std"] == pytest.approx(np.std(values), abs=1e-6)


def test_a_layer_must_have_two_heads():
    with pytest.raises(ValueError, match="a layer with two heads to compare"):
        heads.measure(backbone([LocalHeads(1, 4)]), [batch(0)])


def test_padding_does_not_count():
    batches = [inputs(random_tokens(1, 10), lengths=[7])]
    found = heads.measure(backbone([LocalHeads(2, 4)]), batches)
    assert found["divergences"][0]["positions"] == 7


def test_the_table_has_a_column_for_each_pair_of_kinds():
    rows = [
        {"layer": "a", "kinds": ["LocalHeads", "LocalHeads"], "mean": 0.00381, "std": 0.0018},
        {"layer": "b", "kinds": ["LocalHeads", "RoutingHeads"], "mean": None, "std": None},
    ]
    lines = heads.report({"divergences": rows, "upper_bound": math.log(2)}).splitlines()
    assert "ln 2 = 0.6931" in lines[1]
    assert [line.split() for line in lines[3:]] == [
        ["LocalHeads", "LocalHeads"],
        ["layer", "LocalHeads", "RoutingHeads"],
        ["a", "0.0038±0.0018", "-"],
        ["b", "-", "-"],
    ]


def test_encoders_decoders_and_what_lies_between_are_compared():
    groups = [LocalHeads(1, 4), FullHeads(1)]
    others = {"encoder_head_groups": groups, "cross_head_groups": [FullHeads(2)]}
    sizes = {"num_encoder_layers": 1, "num_layers": 1, "head_groups": groups, **others}
    model = make_backbone(RoutingTransformerSeq2SeqBackbone, **sizes)
    pair = {f"encoder_{name}": values for name, values in batch(0).items()}
    pair |= {f"decoder_{name}": values for name, values in batch(1, length=7).items()}
    found = heads.measure(model, [pair])["divergences"]
    layers = [(row["layer"].split("/")[-1], row["kinds"], row["positions"]) for row in found]
    assert layers == [
        ("attention", ["Everything", "Window"], 10),
        ("attention", ["Everything", "Window"], 7),
        ("cross_attention", ["Everything"] * 2, 7),
    ]
    assert len({row["layer"] for row in found}) == 3
