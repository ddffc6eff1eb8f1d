import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops import cluster_strided_attention
from tests.ops import checks, reference


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    "length, window, clusters",
    [
        pytest.param(16, 4, 4, id="length a multiple of the window"),
        pytest.param(19, 4, 3, id="length no multiple"),
        pytest.param(7, 4, 3, id="a step of 1"),
        pytest.param(9, 16, 2, id="length shorter than the window"),
        pytest.param(12, 1, 3, id="window 1"),
        pytest.param(1, 4, 3, id="one position"),
    ],
)
def test_equation(causal, shared, length, window, clusters):
    checks.holds(
        cluster_strided_attention,
        reference.cluster_strided,
        checks.arrays(length, shared=shared, clusters=clusters),
        window_size=window,
        causal=causal,
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("padding", ["left", "right", "scattered", "a whole row"])
def test_padding(causal, shared, padding):
    mask = checks.mask(padding, 15)
    checks.holds(
        cluster_strided_attention,
        reference.cluster_strided,
        checks.arrays(15, shared=shared, clusters=3, far=3),
        window_size=4,
        causal=causal,
        query_mask=mask,
        key_mask=None if shared else mask,
    )


@pytest.mark.parametrize("length, keys", [(9, 14), (14, 3), (1, 6)])
def test_cross_attention(length, keys):
    checks.holds(
        cluster_strided_attention,
        reference.cluster_strided,
        checks.arrays(length, keys=keys, clusters=3, far=2),
        window_size=4,
        query_mask=checks.mask("right", length),
        key_mask=checks.mask("scattered", keys),
    )


def test_members_lie_at_even_steps_from_the_nearest_on():
    # Scores of one centroid, from the highest to the lowest: those of positions 9, 8, ..., 0.
    angles = np.linspace(np.pi, 0, 10)
    query = np.stack([np.cos(angles), -np.cos(angles), np.sin(angles), -np.sin(angles)], axis=-1)
    inputs = {"query": query[None, None], "key": None, "value": np.zeros((1, 1, 10, 1))}
    inputs["centroids"] = np.array([[[1.0, -1.0, 0.0, 0.0]]])
    attention = checks.attention_of(cluster_strided_attention, inputs, {"window_size": 3})[0, 0]
    assert np.flatnonzero(attention.any(axis=0)).tolist() == [3, 6, 9]
    assert np.flatnonzero(attention.any(axis=1)).tolist() == [3, 6, 9]


def test_no_position_after_the_query_is_seen():
    inputs = checks.arrays(33, clusters=4)
    options = {"window_size": 6, "causal": True}
    attention = checks.attention_of(cluster_strided_attention, inputs, options)
    assert not np.triu(attention, k=1).any()


@pytest.mark.end_to_end
@pytest.mark.parametrize("shared", [False, True])
def test_in_chunks(shared, monkeypatch):
    checks.holds_in_chunks(
        cluster_strided_attention,
        checks.arrays(18, shared=shared, clusters=3, far=2, heads=4),
        monkeypatch,
        window_size=4,
        causal=True,
        query_mask=checks.mask("right", 18),
        key_mask=None if shared else checks.mask("scattered", 18),
    )


@pytest.mark.end_to_end
def test_compiled():
    mask = checks.mask("scattered", 18)
    checks.holds_compiled(
        cluster_strided_attention,
        checks.arrays(18, clusters=3, far=2),
        window_size=4,
        causal=True,
        query_mask=mask,
        key_mask=mask,
    )


def test_unknown_shapes():
    def inputs(length):
        batch, keys = 1 + length % 3, length + 3
        found = checks.arrays(length, keys=keys, clusters=3, far=2, batch=batch)
        return {**found, "key_mask": checks.mask("scattered", keys, batch)}

    checks.holds_for_unknown_shapes(
        cluster_strided_attention, (8, 1, 13, 30), inputs, window_size=6, causal=True
    )


@pytest.mark.parametrize("dtype, atol", [(tf.float32, 1e-5), (tf.bfloat16, 0.06)])
def test_lower_precision(dtype, atol):
    # Every position is a member: rounding cannot change which ones are.
    checks.holds_in_lower_precision(
        cluster_strided_attention,
        reference.cluster_strided,
        checks.arrays(9, clusters=2, far=2),
        dtype,
        atol,
        window_size=9,
        causal=True,
    )


def test_dropout():
    checks.drops_out(
        cluster_strided_attention,
        checks.arrays(9, batch=1, clusters=1),
        window_size=5,
        causal=True,
    )
