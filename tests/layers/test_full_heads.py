import numpy as np
import pytest

from rt_keras.layers import FullHeads, MultiHeadAttention
from tests.layers import checks
from tests.ops import reference


@pytest.mark.parametrize("causal", [False, True])
def test_equation(causal):
    query = checks.random(2, 2, 6, 4, dtype="float64")
    key, value = (checks.random(2, 2, 9, 4, seed=seed, dtype="float64") for seed in (1, 2))
    masks = {
        "query_mask": checks.padding(2, 6),
        "key_mask": checks.padding(2, 9, "left"),
        "attention_mask": np.random.default_rng(3).random((2, 6, 9)) < 0.7,
    }
    group = FullHeads(2, max_relative_distance=3, dtype="float64")
    found = group(query, value, key, use_causal_mask=causal, **masks)
    relative = group.relative_embeddings.numpy()
    expected = reference.full(
        query, key, value, causal=causal, relative_embeddings=relative, **masks
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_attention_activation():
    x = checks.random(1, 2, 7, 6)
    group = FullHeads(2, attention_activation="sparsemax")
    expected = reference.full(x, x, x, attention_activation="sparsemax")
    np.testing.assert_allclose(group(x, x, x), expected, rtol=0, atol=1e-5)
    checks.config_makes_an_equal_layer(group, x, x, x)
    layer, x = MultiHeadAttention([group]), checks.random(2, 7, 8)
    expected = layer(x, x, use_causal_mask=True)
    np.testing.assert_allclose(checks.decode(layer, x, 3), expected, rtol=0, atol=1e-5)
    with pytest.raises(
        ValueError, match="attention_activation must be one of .*attention_activation='max'"
    ):
        FullHeads(2, attention_activation="max")


def test_files_with_dense_below_load():
    group = FullHeads.from_config({**FullHeads(2).get_config(), "dense_below": 8})
    assert group.dense_below is None
    config = {**FullHeads(2, memory_length=3).get_config(), "dense_below": 8}
    assert FullHeads.from_config(config).dense_below == 8
