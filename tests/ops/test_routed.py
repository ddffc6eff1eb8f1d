import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops.routed import Routing
from tests.ops import checks, reference


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("use_query_key_norm", [False, True])
def test_vectors_of_logits_and_the_nearest_clusters(shared, use_query_key_norm):
    inputs = checks.arrays(12, clusters=4, shared=shared, load_bias=True)
    query, key, centroids = inputs["query"], inputs["key"], inputs["centroids"]
    routing = Routing(centroids, 2, inputs["load_bias"], use_query_key_norm=use_query_key_norm)
    mask = np.arange(12)[None] < [[12], [7]]
    found = routing.route(query, key, mask, mask)
    key = query if shared else key
    for vectors, expected in ((found.query, query), (found.key, key)):
        expected = reference.normalize(expected) if use_query_key_norm else expected
        np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-12)
    for vectors, clusters in ((query, found.of_queries), (key, found.of_keys)):
        scores = np.einsum("bhnd,hcd->bhcn", reference.normalize(vectors), centroids)
        scores += inputs["load_bias"][:, :, None]
        expected = np.argsort(-scores, axis=2)[:, :, : clusters.shape[2]]
        np.testing.assert_array_equal(clusters, np.where(mask[:, None, None], expected, 4))
    assert found.of_keys.shape[2] == 1


def test_scaled_queries():
    query = tf.random.normal([1, 2, 3, 4])
    scaled = Routing(tf.zeros([2, 1, 4]), scale=tf.constant([1.0, 4.0])).scaled(query)
    np.testing.assert_allclose(scaled, query * np.array([0.5, 2.0])[:, None, None], rtol=1e-6)
