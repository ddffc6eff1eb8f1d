import numpy as np
import pytest
import tensorflow as tf

from rt_keras.retrieval import ExactIndex, exact_index

COUNT, FEATURES = 23, 3


@pytest.fixture(params=[2**16, 23, 5], ids=lambda block: f"block {block}")
def block(request, monkeypatch):
    monkeypatch.setattr(exact_index, "BLOCK", request.param)


def make_vectors(seed=0):
    """Whole numbers, so that products are exact and many are equal."""
    rng = np.random.default_rng(seed)
    return rng.integers(-2, 3, [COUNT, FEATURES]).astype("float32")


def best(queries, vectors, k):
    """The scores and numbers by NumPy; of equal scores, lower numbers come first."""
    scores = queries @ vectors.T
    numbers = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, numbers, axis=1), numbers


@pytest.mark.parametrize("k", [1, 6, COUNT + 9])
def test_the_largest_products_are_found(block, k):
    vectors, queries = make_vectors(), make_vectors(1)[:7]
    index = ExactIndex(vectors)
    scores, numbers = index.search(queries, k)
    expected = best(queries, vectors, k)
    assert scores.dtype == tf.float32 and numbers.dtype == tf.int32
    assert scores.shape == (7, min(k, COUNT)) and len(index) == COUNT
    np.testing.assert_array_equal(scores, expected[0])
    np.testing.assert_array_equal(numbers, expected[1])


def test_a_function_searches_for_any_number_of_queries(block):
    vectors = make_vectors()
    index = ExactIndex(tf.constant(vectors))
    signature = [tf.TensorSpec([None, FEATURES], tf.float32)]
    search = tf.function(lambda queries: index.search(queries, 4), input_signature=signature)
    for count in (0, 1, 5):
        queries = make_vectors(2)[:count]
        for found, expected in zip(search(queries), best(queries, vectors, 4)):
            np.testing.assert_array_equal(found, expected)


def test_vectors_and_queries_of_another_shape_are_refused():
    for shape in ([0, 3], [3], [2, 2, 2]):
        with pytest.raises(ValueError, match=r"vectors must have the shape \[vectors, features\]"):
            ExactIndex(np.zeros(shape, "float32"))
    index = ExactIndex(make_vectors().astype("float64"))
    for shape in ([1, 2], [3], [1, 1, 3]):
        with pytest.raises(ValueError, match=r"queries must have the shape \[queries, 3\]"):
            index.search(np.zeros(shape), 1)
    for k in (0, -1, 1.5):
        with pytest.raises(ValueError, match="k must be a positive integer"):
            index.search(np.zeros([1, 3]), k)
