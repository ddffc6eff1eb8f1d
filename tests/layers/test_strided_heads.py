import numpy as np
import pytest

from rt_keras.layers import StridedHeads
from tests.layers import checks
from tests.ops import reference


def vectors():
    return [checks.random(2, 2, 11, 6, seed=seed, dtype="float64") for seed in range(3)]


@pytest.mark.parametrize("causal", [False, True])
def test_equation(causal):
    query, key, value = vectors()
    mask = checks.padding(2, 11)
    group = StridedHeads(2, 4, max_relative_distance=2, dtype="float64")
    options = {"query_mask": mask, "key_mask": mask}
    found = group(query, value, key, use_causal_mask=causal, **options)
    expected = reference.strided(
        query,
        key,
        value,
        stride=4,
        causal=causal,
        relative_embeddings=group.relative_embeddings.numpy(),
        **options,
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_bad_arguments():
    with pytest.raises(
        ValueError, match="stride must be an integer of at least 1. Received: stride=0"
    ):
        StridedHeads(2, 0)
    query, value = checks.random(1, 2, 5, 6), checks.random(1, 2, 7, 6)
    with pytest.raises(ValueError, match="query of length 5, key of length 7"):
        StridedHeads(2, 4)(query, value, value)


def test_chunks_are_read_position_by_position():
    heads, x = StridedHeads(1, 2), checks.random(2, 1, 4, 3)
    heads(x, x, x, use_causal_mask=True)
    cache = heads.new_cache(2, 9, 3, 3)
    for options in (
        {"count": np.array([1, 2])},
        {"training": True},
        {"position": np.array([0, 1])},
    ):
        with pytest.raises(ValueError, match="StridedHeads read a chunk position by position"):
            heads.call_with_cache(x, x, x, **{"cache": cache, "position": 0, **options})
