import numpy as np
import pytest

from rt_keras.ops import lsh_attention, lsh_buckets


def test_buckets():
    x = np.random.default_rng(0).normal(size=(2, 2, 9, 6))
    rotations = np.random.default_rng(1).normal(size=(2, 3, 6, 4))
    found = lsh_buckets(x, rotations)
    for b, h, r, i in np.ndindex(*found.shape):
        rotated = x[b, h, i] @ rotations[h, r]
        assert found[b, h, r, i] == np.argmax([*rotated, *-rotated])


def test_one_bucket_and_chunk_of_all_is_full_attention_to_the_others():
    x = np.random.default_rng(0).normal(size=(1, 1, 6, 4))
    found = lsh_attention(x, None, x, np.zeros([1, 2, 4, 1]), block_size=6).numpy()[0, 0]
    keys = x[0, 0] / np.linalg.norm(x[0, 0], axis=-1, keepdims=True)
    weights = np.exp(x[0, 0] @ keys.T / 2) * (1 - np.eye(6))
    expected = weights @ x[0, 0] / weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_keys_are_refused():
    x = np.ones([2, 2, 9, 6])
    with pytest.raises(ValueError, match="takes no key"):
        lsh_attention(x, x, x, np.ones([2, 1, 6, 1]), block_size=4)
