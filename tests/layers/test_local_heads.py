import numpy as np
import pytest

from rt_keras.layers import LocalHeads
from tests.layers import checks
from tests.ops import reference


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("look_back", [0, 1, 2])
def test_equation(causal, look_back):
    query, key, value = (
        checks.random(2, 2, 11, 6, seed=seed, dtype="float64") for seed in range(3)
    )
    mask = checks.padding(2, 11)
    group = LocalHeads(2, 4, look_back, max_relative_distance=3, dtype="float64")
    found = group(query, value, key, query_mask=mask, key_mask=mask, use_causal_mask=causal)
    expected = reference.local(
        query,
        key,
        value,
        block_size=4,
        look_back=look_back,
        causal=causal,
        query_mask=mask,
        key_mask=mask,
        relative_embeddings=group.relative_embeddings.numpy(),
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_grid(causal):
    query, key, value = (
        checks.random(2, 2, 12, 6, seed=seed, dtype="float64") for seed in range(3)
    )
    group = LocalHeads(
        2,
        2,
        (1, 0),
        max_relative_distance=3,
        grid=[3, 2],
        token_bias="fixed",
        dtype="float64",
    )
    token_bias = checks.random(2, 12, dtype="float64")
    found = group(query, value, key, token_bias=token_bias, use_causal_mask=causal)
    expected = reference.local(
        query,
        key,
        value,
        block_size=2,
        look_back=(1, 0),
        grid=(3, 2),
        causal=causal,
        token_bias=token_bias,
        relative_embeddings=group.relative_embeddings.numpy(),
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    checks.config_makes_an_equal_layer(group, query, value, key)


def test_key_block_size():
    query = checks.random(2, 2, 9, 6, dtype="float64")
    key, value = (checks.random(2, 2, 6, 6, seed=seed, dtype="float64") for seed in (1, 2))
    group = LocalHeads(2, 3, key_block_size=2, dtype="float64")
    mask = checks.padding(2, 6)
    found = group(query, value, key, key_mask=mask)
    expected = reference.local(query, key, value, block_size=3, key_block_size=2, key_mask=mask)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    checks.config_makes_an_equal_layer(group, query, value, key)


@pytest.mark.parametrize("causal", [False, True])
def test_sliding_window(causal):
    query, key, value = (
        checks.random(1, 2, 11, 6, seed=seed, dtype="float64") for seed in range(3)
    )
    group = LocalHeads(2, 4, sliding_window=3, dtype="float64")
    found = group(query, value, key, use_causal_mask=causal)
    options = {"block_size": 4, "sliding_window": 3, "causal": causal}
    expected = reference.local(query, key, value, **options)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    checks.config_makes_an_equal_layer(group, query, value, key, use_causal_mask=causal)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"sliding_window": 0}, "sliding_window must be a positive integer"),
        ({"sliding_window": 6}, "from 1 to look_back · block_size . 1, 5. Received: 6"),
        ({"sliding_window": 3, "grid": (2, 2)}, "neither grid nor key_block_size"),
        ({"grid": (2, 0)}, "grid must be a positive integer. Received: grid=0"),
        ({"key_block_size": 0}, "key_block_size must be a positive integer"),
        ({"look_back": (1, 1)}, r"one for each dimension of grid. Received: look_back=\(1, 1\)"),
        (
            {"look_back": (1,), "grid": (2, 2)},
            r"one for each dimension of grid. .* look_back=\(1,\), grid=\(2, 2\)",
        ),
        ({"block_size": 0}, "block_size must be a positive integer. Received: block_size=0"),
        ({"block_size": 2.5}, "block_size must be a positive integer. Received: block_size=2.5"),
        (
            {"look_back": -1},
            "look_back must be an integer of at least 0, .* look_back=-1",
        ),
        (
            {"look_back": 0.5},
            "look_back must be an integer of at least 0, .* look_back=0.5",
        ),
    ],
)
def test_bad_numbers(options, message):
    with pytest.raises(ValueError, match=message):
        LocalHeads(2, **{"block_size": 4, **options})


def test_lengths_that_differ():
    query, value = checks.random(1, 2, 5, 6), checks.random(1, 2, 7, 6)
    with pytest.raises(ValueError, match="query of length 5, key of length 7"):
        LocalHeads(2, 4)(query, value, value)
