import functools

import numpy as np
import pytest

from rt_keras.convert.t2t.clusters import bucket_members, cluster_attention, strided_members
from rt_keras.convert.t2t.local import local_attention
from rt_keras.convert.t2t.strided import strided_attention
from rt_keras.ops.balanced import nearest_members
from tests.convert.t2t import reference
from tests.ops import checks


def arrays(length, *, far=3, value_depth=5, token_bias=True, **options):
    """Returns inputs as in `tests/ops/checks.py`, with tables shared by heads, and biases."""
    found = checks.arrays(length, value_depth=value_depth, **options)
    rng = np.random.default_rng(7)
    found["relative_embeddings"] = rng.normal(size=(1, 2 * far + 1, 6))
    found["relative_values"] = rng.normal(size=(1, 2 * far + 1, value_depth))
    if token_bias:
        batch, keys = (found["value"].shape[axis] for axis in (0, 2))
        found["token_bias"] = np.random.default_rng(8).normal(size=(batch, keys))
    return found


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


KINDS = {
    "balanced": (functools.partial(by_centroids, nearest_members), reference.balanced),
    "cluster_strided": (
        functools.partial(by_centroids, strided_members),
        reference.cluster_strided,
    ),
    "hashed": (
        functools.partial(hashed, num_buckets=4),
        functools.partial(reference.hashed, num_buckets=4),
    ),
}


@pytest.mark.parametrize("causal, shared", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("kind", KINDS)
def test_clusters(kind, causal, shared):
    inputs = arrays(14, shared=shared, clusters=3, far=2)
    if kind == "hashed":
        del inputs["centroids"]
        inputs["projections"] = np.random.default_rng(8).normal(size=(2, 2, 6))
    options = {"key_mask": checks.mask("scattered", 14), "causal": causal}
    checks.holds(*KINDS[kind], inputs, window_size=5, block_size=4, **options)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("options", [{"block_size": 4}, {"block_size": 2, "grid": (2, 3)}])
def test_local(causal, options):
    # With padding at the start, queries without keys get the mean of their window.
    checks.holds(
        local_attention,
        reference.local,
        arrays(12),
        causal=causal,
        query_mask=checks.mask("right", 12),
        key_mask=np.arange(12) >= np.array([[3], [11]]),
        **options,
    )


@pytest.mark.parametrize("causal", [False, True])
def test_strided(causal):
    inputs = arrays(11, token_bias=False)
    checks.holds(strided_attention, reference.strided, inputs, stride=3, causal=causal)
