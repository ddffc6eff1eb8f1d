import numpy as np
import pytest

from rt_keras.layers import HashedHeads
from tests.layers import checks
from tests.ops import reference


def vectors():
    return [checks.random(2, 2, 11, 6, seed=seed, dtype="float64") for seed in range(3)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("share_qk", [False, True])
def test_equation(causal, share_qk):
    query, key, value = vectors()
    key = None if share_qk else key
    mask = checks.padding(2, 11)
    group = HashedHeads(
        2,
        5,
        4,
        share_qk=share_qk,
        max_relative_distance=2,
        dtype="float64",
    )
    options = {"query_mask": mask, "key_mask": mask}
    found = group(query, value, key, use_causal_mask=causal, **options)
    expected = reference.hashed(
        query,
        key,
        value,
        group.projections.numpy(),
        num_buckets=5,
        window_size=4,
        causal=causal,
        relative_embeddings=group.relative_embeddings.numpy(),
        **options,
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("num_buckets, bits", [(2, 1), (4, 2), (7, 2), (8, 3)])
def test_projections(num_buckets, bits):
    group = HashedHeads(2, num_buckets, 4, seed=3, dtype="mixed_bfloat16")
    group.build((None, 2, None, 6), (None, 2, None, 6))
    assert group.projections.shape == (2, bits, 6)
    assert group.projections.dtype == "float32"
    assert not group.trainable_variables
    flat = group.projections.numpy().reshape(-1, 6)
    np.testing.assert_allclose(flat @ flat.T, np.eye(2 * bits), rtol=0, atol=1e-5)
    same = HashedHeads(2, num_buckets, 4, seed=3)
    same.build((None, 2, None, 6), (None, 2, None, 6))
    np.testing.assert_array_equal(same.projections, group.projections)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_buckets": 1}, "num_buckets must be at least 2. Received: 1"),
        ({"num_buckets": 2.0}, "num_buckets must be a positive integer"),
        ({"window_size": 0}, "window_size must be a positive integer. Received: window_size=0"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        HashedHeads(2, **{"num_buckets": 4, "window_size": 4, **options})
