import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops import hash_buckets, hashed_attention
from tests.ops import checks, reference


def arrays(length, bits=2, heads=2, **options):
    found = checks.arrays(length, heads=heads, **options)
    return {**found, "projections": np.random.default_rng(7).normal(size=(heads, bits, 6))}


def test_buckets():
    x = np.random.default_rng(0).normal(size=(2, 2, 9, 6))
    projections = np.random.default_rng(1).normal(size=(2, 3, 6))
    found = hash_buckets(x, projections)
    for b, h, i in np.ndindex(x.shape[:3]):
        bits = [int(projection @ x[b, h, i] > 0) for projection in projections[h]]
        assert found[b, h, i] == bits[0] + 2 * bits[1] + 4 * bits[2]
    # The side of a vector on the border is the lower one.
    assert not np.any(hash_buckets(np.zeros((1, 2, 3, 6)), projections))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    "length, window, clusters, bits",
    [
        pytest.param(16, 4, 4, 2, id="as many places as positions"),
        pytest.param(17, 3, 4, 2, id="positions left out"),
        pytest.param(9, 16, 2, 1, id="length shorter than the window"),
        pytest.param(13, 4, 3, 2, id="a bucket that is not used"),
        pytest.param(13, 4, 6, 2, id="a cluster without a bucket"),
        pytest.param(1, 4, 4, 2, id="one position"),
    ],
)
def test_equation(causal, shared, length, window, clusters, bits):
    checks.holds(
        hashed_attention,
        reference.hashed,
        arrays(length, bits, shared=shared),
        num_buckets=clusters,
        window_size=window,
        causal=causal,
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("padding", ["left", "right", "scattered", "a whole row"])
def test_padding(causal, shared, padding):
    mask = checks.mask(padding, 15)
    checks.holds(
        hashed_attention,
        reference.hashed,
        arrays(15, shared=shared, far=3),
        num_buckets=4,
        window_size=4,
        causal=causal,
        query_mask=mask,
        key_mask=None if shared else mask,
    )


@pytest.mark.parametrize("length, keys", [(9, 14), (14, 3), (1, 6)])
def test_cross_attention(length, keys):
    checks.holds(
        hashed_attention,
        reference.hashed,
        arrays(length, keys=keys, far=2),
        num_buckets=4,
        window_size=4,
        query_mask=checks.mask("right", length),
        key_mask=checks.mask("scattered", keys),
    )


def test_no_position_after_the_query_is_seen():
    options = {"num_buckets": 4, "window_size": 6, "causal": True}
    attention = checks.attention_of(hashed_attention, arrays(21), options)
    assert not np.triu(attention, k=1).any()


@pytest.mark.end_to_end
@pytest.mark.parametrize("shared", [False, True])
def test_in_chunks(shared, monkeypatch):
    checks.holds_in_chunks(
        hashed_attention,
        arrays(18, shared=shared, far=2, heads=4),
        monkeypatch,
        num_buckets=4,
        window_size=4,
        causal=True,
        query_mask=checks.mask("right", 18),
        key_mask=None if shared else checks.mask("scattered", 18),
    )


def test_compiled():
    mask = checks.mask("scattered", 18)
    checks.holds_compiled(
        hashed_attention,
        arrays(18, far=2),
        num_buckets=4,
        window_size=4,
        causal=True,
        query_mask=mask,
        key_mask=mask,
    )


def test_unknown_shapes():
    def inputs(length):
        batch, keys = 1 + length % 3, length + 3
        found = arrays(length, keys=keys, far=2, batch=batch)
        return {**found, "key_mask": checks.mask("scattered", keys, batch)}

    checks.holds_for_unknown_shapes(
        hashed_attention,
        (8, 1, 13),
        inputs,
        num_buckets=4,
        window_size=6,
        causal=True,
    )


@pytest.mark.parametrize("dtype, atol", [(tf.float32, 1e-5), (tf.bfloat16, 0.06)])
def test_lower_precision(dtype, atol):
    # Every position is a member: rounding cannot change which ones are.
    checks.holds_in_lower_precision(
        hashed_attention,
        reference.hashed,
        arrays(9, far=2),
        dtype,
        atol,
        num_buckets=2,
        window_size=9,
        causal=True,
    )


def test_dropout():
    checks.drops_out(
        hashed_attention, arrays(9, 1, batch=1), num_buckets=1, window_size=5, causal=True
    )
