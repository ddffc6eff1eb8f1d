import functools

import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops import nearest_attention, nearest_centroid, normalize
from rt_keras.ops.nearest.assign import Assignment
from rt_keras.ops.nearest.attention import naive_nearest_attention
from rt_keras.ops.nearest.rings import nearest_cache, nearest_chunk
from tests.ops import checks, chunk_checks


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("of_queries, of_keys", [(0, 0), (0, 2), (None, 1), (1, None)])
def test_uneven_clusters(causal, of_queries, of_keys):
    # All queries, all keys or both in one cluster; None leaves them unchanged.
    inputs = checks.arrays(21, clusters=3)
    inputs["centroids"] *= 3
    for name, cluster in (("query", of_queries), ("key", of_keys)):
        if cluster is not None:
            inputs[name] = inputs["centroids"][:, None, cluster] + 0.1 * inputs[name]
            found = nearest_centroid(normalize(inputs[name]), inputs["centroids"])
            assert np.all(found == cluster)
    options = {"window_size": 4, "causal": causal}
    checks.holds(nearest_attention, naive_nearest_attention, inputs, **options)
    if (of_queries, of_keys) == (0, 2):
        assert not np.any(nearest_attention(**checks.tensors(inputs), **options))


@pytest.mark.parametrize("shared", [False, True])
def test_causality_where_the_future_changes_how_full_clusters_are(shared):
    inputs = checks.arrays(33, shared=shared, clusters=4)
    start = 16
    crowded = {**inputs}
    for name in ("query",) if shared else ("query", "key"):
        crowded[name] = inputs[name].copy()
        crowded[name][:, :, start:] = inputs["centroids"][:, :1]
    options = {"window_size": 5, "causal": True}
    matrices = [checks.attention_of(nearest_attention, x, options) for x in (inputs, crowded)]
    before, after = (matrix[:, :, :start] for matrix in matrices)
    assert np.array_equal(before > 0, after > 0)
    np.testing.assert_allclose(before, after, rtol=0, atol=1e-12)


def test_one_length_known_and_the_other_not():
    inputs = checks.tensors(checks.arrays(9, clusters=2))

    @tf.function(input_signature=[tf.TensorSpec([2, 2, None, 6], tf.float64)])
    def call(key):
        return nearest_attention(**{**inputs, "key": key}, window_size=4)

    expected = nearest_attention(**inputs, window_size=4)
    np.testing.assert_allclose(call(inputs["key"]), expected, rtol=0, atol=1e-12)


def chunk(query, key, value, cache, position, centroids, num_probes=1, **options):
    assignment = Assignment(centroids, num_probes)
    return nearest_chunk(query, key, value, cache, position, assignment, **options)


def empty_cache(inputs, window_size):
    """The cache before the first position."""
    tensors = checks.tensors(inputs)
    key = tensors["query" if tensors["key"] is None else "key"]
    return nearest_cache(
        key,
        tensors["value"],
        Assignment(tensors["centroids"]),
        0,
        window_size=window_size,
        keep_positions="relative_embeddings" in inputs,
    )


def test_members_stay_where_they_were_put_when_centroids_move():
    inputs = checks.arrays(12, shared=True, clusters=3, heads=1, batch=1)
    cache = empty_cache(inputs, 12)
    _, cache = chunk_checks.in_chunks(cache, chunk, inputs, [8])
    moved = {**inputs, "centroids": inputs["centroids"][:, ::-1].copy()}
    parts = [inputs[name][:, :, 8:] for name in ("query", "value")]
    _, after = chunk(parts[0], None, parts[1], cache, 8, tf.constant(moved["centroids"]))
    counts = cache["counts"].numpy()[0, 0]
    for cluster, count in enumerate(counts):
        kept, now = (x["key"].numpy()[0, 0, cluster, :count] for x in (cache, after))
        np.testing.assert_array_equal(kept, now)


def test_gradients_stay_in_the_chunk():
    inputs = checks.arrays(40, clusters=3, far=5)
    chunk_checks.gradients_stay_in_the_chunk(
        empty_cache(inputs, 6),
        chunk,
        functools.partial(nearest_attention, window_size=6, causal=True),
        inputs,
        22,
        num_probes=2,
    )
