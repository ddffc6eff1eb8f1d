import functools

import numpy as np
import pytest

from rt_keras.ops.balanced import nearest_members
from rt_keras.ops.cluster_strided import strided_members
from rt_keras.ops.hashed import bucket_members
from rt_keras.t2t.ops import cluster_attention
from tests.ops import checks
from tests.t2t import reference
from tests.t2t.ops.checks import arrays


def by_centroids(pick_members, query, key, value, centroids, **options):
    return cluster_attention(
        pick_members,
        {"centroids": centroids},
        query=query,
        key=key,
        value=value,
        num_clusters=centroids.shape[1],
        **options,
    )


balanced = functools.partial(by_centroids, nearest_members)
cluster_strided = functools.partial(by_centroids, strided_members)


def hashed(query, key, value, projections, *, num_buckets, **options):
    return cluster_attention(
        functools.partial(bucket_members, num_buckets),
        {"projections": projections},
        query=query,
        key=key,
        value=value,
        num_clusters=num_buckets,
        **options,
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    "length, block_size, window",
    [
        pytest.param(12, 4, 5, id="whole blocks"),
        pytest.param(13, 8, 6, id="zeros that may be members"),
        pytest.param(5, 8, 9, id="a window of everything"),
    ],
)
def test_balanced(causal, shared, length, block_size, window):
    checks.holds(
        balanced,
        reference.balanced,
        arrays(length, shared=shared, clusters=3, far=2, token_bias=True),
        window_size=window,
        causal=causal,
        block_size=block_size,
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_cluster_strided(causal, shared):
    checks.holds(
        cluster_strided,
        reference.cluster_strided,
        arrays(14, shared=shared, clusters=3, far=2, token_bias=True),
        window_size=5,
        causal=causal,
        key_mask=checks.mask("scattered", 14),
        block_size=4,
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_hashed(causal, shared):
    inputs = arrays(14, shared=shared, far=2, token_bias=True)
    inputs["projections"] = np.random.default_rng(8).normal(size=(2, 2, 6))
    checks.holds(
        hashed,
        reference.hashed,
        inputs,
        num_buckets=4,
        window_size=5,
        causal=causal,
        key_mask=checks.mask("scattered", 14),
        block_size=4,
    )


@pytest.mark.parametrize("causal", [False, True])
def test_padding(causal):
    # Padding may be a member, and a query without keys gets the mean over all members.
    checks.holds(
        balanced,
        reference.balanced,
        arrays(13, clusters=3, far=2),
        window_size=3,
        causal=causal,
        query_mask=checks.mask("right", 13),
        key_mask=np.arange(13) >= np.array([[4], [11]]),
        block_size=4,
    )


def test_cross_attention():
    checks.holds(
        balanced,
        reference.balanced,
        arrays(6, keys=11, clusters=3, far=2, token_bias=True),
        window_size=7,
        key_mask=checks.mask("right", 11),
        block_size=4,
    )


def test_masks_by_rank():
    # The first member of the queries sees the first member of the keys, wherever that is.
    inputs = arrays(16, clusters=1, batch=1, heads=1, seed=3)
    options = {"window_size": 4, "causal": True, "block_size": 4}
    attention = checks.attention_of(balanced, inputs, options)[0, 0]
    (of_queries,), (of_keys,) = np.nonzero(attention.any(axis=1)), np.nonzero(attention.any(axis=0))
    assert len(of_queries) == len(of_keys) == 4
    assert np.array_equal(attention[np.ix_(of_queries, of_keys)] > 0, np.tri(4, dtype=bool))
    assert np.triu(attention, k=1).any()
    # That code adds 0.01 to the number of clusters that chose a position.
    np.testing.assert_allclose(attention[of_queries].sum(axis=1), 1 / 1.01)


def test_compiled():
    checks.holds_compiled(
        balanced,
        arrays(13, clusters=3, far=2, token_bias=True),
        window_size=5,
        causal=True,
        key_mask=checks.mask("scattered", 13),
        block_size=4,
    )


def test_in_chunks(monkeypatch):
    checks.holds_in_chunks(
        balanced,
        arrays(13, clusters=3, far=2, token_bias=True),
        monkeypatch,
        window_size=5,
        causal=True,
        block_size=4,
    )


def test_unknown_shapes():
    def inputs(length):
        batch, keys = 1 + length % 3, length + 3
        found = arrays(length, keys=keys, clusters=3, far=2, batch=batch, token_bias=True)
        return {**found, "key_mask": checks.mask("scattered", keys, batch)}

    checks.holds_for_unknown_shapes(balanced, (8, 1, 13), inputs, window_size=6, block_size=4)
