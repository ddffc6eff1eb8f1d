import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops import nearest_attention, nearest_centroid, normalize
from tests.ops import checks, reference


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
    checks.holds(nearest_attention, reference.nearest, inputs, **options)
    if (of_queries, of_keys) == (0, 2):
        assert not np.any(nearest_attention(**checks.tensors(inputs), **options))


@pytest.mark.parametrize("shared", [False, True])
def test_causality_where_the_future_changes_how_full_clusters_are(shared):
    inputs = checks.arrays(33, shared=shared, clusters=4)
    start = 16
    crowded = checks.with_another_future(inputs, start)
    for name in ("query", "key"):
        if crowded[name] is not None:
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
