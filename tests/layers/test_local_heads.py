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


@pytest.mark.parametrize(
    "options, message",
    [
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
