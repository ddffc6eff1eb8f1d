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


def test_load_bias_decides():
    inputs = checks.arrays(14, clusters=3)
    inputs["load_bias"] = np.array([[0.0, 100.0, 0.0], [0.0, 0.0, 100.0]])
    attention = checks.attention_of(nearest_attention, inputs, {"window_size": 4, "causal": True})
    # All in one cluster: the last 4 positions.
    distance = np.arange(14)[:, None] - np.arange(14)
    assert np.array_equal(attention[0, 0] > 0, (distance >= 0) & (distance < 4))


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


def test_lengths_that_differ():
    inputs = checks.arrays(5, keys=7, clusters=2)
    with pytest.raises(ValueError, match='"nearest".*query of length 5, key of length 7'):
        nearest_attention(**checks.tensors(inputs), window_size=4)


def test_one_length_known_and_the_other_not():
    inputs = checks.tensors(checks.arrays(9, clusters=2))

    @tf.function(input_signature=[tf.TensorSpec([2, 2, None, 6], tf.float64)])
    def call(key):
        return nearest_attention(**{**inputs, "key": key}, window_size=4)

    expected = nearest_attention(**inputs, window_size=4)
    np.testing.assert_allclose(call(inputs["key"]), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", [{"block_size": 4}, {"key": tf.zeros([1, 2, 9, 4])}])
def test_shifted_keys_are_the_queries_and_leave_out_no_window(options):
    x = tf.zeros([1, 2, 9, 4])
    arguments = {"query": x, "key": None, "value": x, "centroids": x[0, :, :3], **options}
    with pytest.raises(
        ValueError, match="routed_key='previous_query' needs key=None and block_size=None"
    ):
        nearest_attention(**arguments, window_size=4, routed_key="previous_query")
