import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops import lsh_attention, lsh_buckets
from tests.ops import checks, reference


def arrays(length, rounds=2, buckets=4, heads=2, **options):
    found = checks.arrays(length, heads=heads, shared=True, **options)
    rotations = np.random.default_rng(7).normal(size=(heads, rounds, 6, buckets // 2))
    return {**found, "rotations": rotations}


def test_buckets():
    x = np.random.default_rng(0).normal(size=(2, 2, 9, 6))
    rotations = np.random.default_rng(1).normal(size=(2, 3, 6, 4))
    found = lsh_buckets(x, rotations)
    for b, h, r, i in np.ndindex(*found.shape):
        rotated = x[b, h, i] @ rotations[h, r]
        assert found[b, h, r, i] == np.argmax([*rotated, *-rotated])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "length, block_size, rounds, buckets",
    [(16, 4, 1, 4), (17, 3, 3, 6), (9, 16, 2, 2), (13, 1, 2, 2), (1, 4, 2, 4), (11, 4, 4, 8)],
)
def test_equation(causal, length, block_size, rounds, buckets):
    inputs = arrays(length, rounds, buckets)
    checks.holds(lsh_attention, reference.lsh, inputs, block_size=block_size, causal=causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padding", ["left", "right", "scattered", "a whole row"])
def test_padding(causal, padding):
    checks.holds(
        lsh_attention,
        reference.lsh,
        arrays(15),
        block_size=4,
        causal=causal,
        query_mask=checks.mask(padding, 15),
        key_mask=checks.mask(padding, 15, seed=5),
    )


def test_one_bucket_and_chunk_of_all_is_full_attention_to_the_others():
    x = np.random.default_rng(0).normal(size=(1, 1, 6, 4))
    found = lsh_attention(x, None, x, np.zeros([1, 2, 4, 1]), block_size=6).numpy()[0, 0]
    keys = x[0, 0] / np.linalg.norm(x[0, 0], axis=-1, keepdims=True)
    weights = np.exp(x[0, 0] @ keys.T / 2) * (1 - np.eye(6))
    expected = weights @ x[0, 0] / weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_no_later_position_is_attended_to():
    attention = checks.attention_of(lsh_attention, arrays(21), {"block_size": 4, "causal": True})
    assert not np.triu(attention, k=1).any()


@pytest.mark.end_to_end
def test_in_chunks(monkeypatch):
    inputs = arrays(14)
    mask = checks.mask("right", 14)
    options = {"block_size": 4, "causal": True, "query_mask": mask}
    checks.holds_in_chunks(lsh_attention, inputs, monkeypatch, **options)


def test_compiled():
    mask = checks.mask("scattered", 18)
    checks.holds_compiled(lsh_attention, arrays(18), block_size=4, causal=True, query_mask=mask)


@pytest.mark.parametrize("dtype, atol", [(tf.float32, 1e-5), (tf.bfloat16, 0.06)])
def test_lower_precision(dtype, atol):
    # All positions share one bucket and one chunk: rounding cannot change who sees whom.
    inputs = arrays(9, buckets=2)
    inputs["rotations"] = np.zeros_like(inputs["rotations"])
    checks.holds_in_lower_precision(
        lsh_attention, reference.lsh, inputs, dtype, atol, block_size=9, causal=True
    )


def test_unknown_shapes():
    def inputs(length):
        batch = 1 + length % 3
        found = checks.arrays(length, batch=batch, shared=True)
        del found["key"]
        return {**found, "query_mask": checks.mask("scattered", length, batch)}

    rotations = np.random.default_rng(7).normal(size=(2, 2, 6, 2))
    options = {"rotations": rotations, "block_size": 4, "causal": True}
    checks.holds_for_unknown_shapes(lsh_attention, (8, 1, 13), inputs, **options)


def test_dropout():
    # In one round: in several, a key is dropped from each by itself.
    inputs = arrays(6, rounds=1, buckets=2, batch=1)
    checks.drops_out(lsh_attention, inputs, block_size=6)


def test_keys_are_refused():
    inputs = {**arrays(9), "key": np.ones([2, 2, 9, 6])}
    with pytest.raises(ValueError, match="takes no key"):
        lsh_attention(**checks.tensors(inputs), block_size=4)
