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


BALANCED = balanced, reference.balanced
KINDS = {
    "balanced": (*BALANCED, {}),
    "cluster_strided": (cluster_strided, reference.cluster_strided, {}),
    "hashed": (hashed, reference.hashed, {"num_buckets": 4}),
}


@pytest.mark.parametrize("causal, shared", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("kind", KINDS)
def test_equation(kind, causal, shared):
    op, expected, options = KINDS[kind]
    inputs = arrays(14, shared=shared, clusters=3, far=2, token_bias=True)
    if kind == "hashed":
        del inputs["centroids"]
        inputs["projections"] = np.random.default_rng(8).normal(size=(2, 2, 6))
    options = {**options, "key_mask": checks.mask("scattered", 14), "causal": causal}
    checks.holds(op, expected, inputs, window_size=5, block_size=4, **options)
