import numpy as np
import pytest

from rt_keras.layers import FullHeads
from tests.layers import checks
from tests.ops import reference


@pytest.mark.parametrize("causal", [False, True])
def test_equation_of_other_keys_and_all_masks(causal):
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
