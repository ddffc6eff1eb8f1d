import numpy as np
import pytest

import rt_keras
from rt_keras.layers import FullHeads, LocalHeads, RoutingHeads
from tests.models.adapted.checks import make_backbone, make_inputs


@pytest.fixture(scope="module")
def gpt():
    return make_backbone("GPT2")


@pytest.mark.end_to_end
def test_full_heads_are_not_off(gpt):
    same = rt_keras.adapt(gpt, [FullHeads(4)])
    off = rt_keras.distill(same, gpt, make_inputs(gpt), steps=1, learning_rate=1e-9, verbose=0)
    assert max(off["before"]) < 1e-5


@pytest.mark.end_to_end
@pytest.mark.parametrize("lora_rank", [None, 2])
def test_distilled_blocks_come_nearer_and_the_rest_stays(gpt, lora_rank):
    model = rt_keras.adapt(gpt, [LocalHeads(2, 2), RoutingHeads(2, 2, 4, use_query_key_norm=False)])
    centroids = model.transformer_layers[0]._self_attention_layer.head_groups[1].centroids
    start = np.array(centroids)
    off = rt_keras.distill(
        model,
        gpt,
        make_inputs(gpt),
        steps=30,
        learning_rate=1e-2,
        lora_rank=lora_rank,
        seed=0,
        verbose=0,
    )
    assert np.all(np.array(off["after"]) < 0.9 * np.array(off["before"]))
    assert np.abs(np.asarray(centroids) - start).max() > 1e-3
    for name in ("token_embedding", "position_embedding"):
        for ours, theirs in zip(getattr(model, name).weights, getattr(gpt, name).weights):
            np.testing.assert_array_equal(ours, theirs)


def test_what_cannot_be_distilled_is_refused(gpt):
    model = rt_keras.adapt(gpt, [LocalHeads(4, 2)])
    inputs = make_inputs(gpt)
    with pytest.raises(ValueError, match="was not made by adapt"):
        rt_keras.distill(gpt, gpt, inputs)
    with pytest.raises(ValueError, match="must be the model that was adapted.*OPTBackbone"):
        rt_keras.distill(model, make_backbone("OPT"), inputs)
    with pytest.raises(ValueError, match="steps must be at least 1. Received: 0"):
        rt_keras.distill(model, gpt, inputs, steps=0)
