import numpy as np
import pytest

from rt_keras.layers import LocalHeads
from tests.layers import checks
from tests.ops import reference


@pytest.mark.parametrize("causal", [False, True])
def test_look_back_along_each_dimension_of_a_grid(causal):
    query, key, value = (
        checks.random(2, 2, 12, 6, seed=seed, dtype="float64") for seed in range(3)
    )
    group = LocalHeads(2, 2, (1, 0), max_relative_distance=3, grid=[3, 2], dtype="float64")
    found = group(query, value, key, use_causal_mask=causal)
    expected = reference.local(
        query,
        key,
        value,
        block_size=2,
        look_back=(1, 0),
        grid=(3, 2),
        causal=causal,
        relative_embeddings=group.relative_embeddings.numpy(),
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    checks.config_makes_an_equal_layer(group, query, value, key)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"sliding_window": 6}, "from 1 to look_back · block_size . 1, 5. Received: 6"),
        ({"sliding_window": 3, "grid": (2, 2)}, "with grid or key_block_size"),
        ({"grid": (2, 0)}, r"grid must be positive integers. Received: grid=\(2, 0\)"),
        (
            {"look_back": (1,), "grid": (2, 2)},
            r"one for each dimension of grid. .* look_back=\(1,\), grid=\(2, 2\)",
        ),
        ({"block_size": 2.5}, "block_size must be an integer of at least 1. .*block_size=2.5"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        LocalHeads(2, **{"block_size": 4, **options})


def test_different_lengths():
    query, value = checks.random(1, 2, 5, 6), checks.random(1, 2, 7, 6)
    with pytest.raises(ValueError, match="query of length 5, key of length 7"):
        LocalHeads(2, 4)(query, value, value)
