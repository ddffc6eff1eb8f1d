import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops.relative import pair_bias, window_bias

QUERY = np.random.default_rng(0).normal(size=(2, 2, 3, 4, 5))


def embeddings(far):
    return np.random.default_rng(1).normal(size=(2, 2 * far + 1, 5))


def equation(table, distance):
    """bias_aj = query_a · table[clip(distance(b, h, m, a, j))], of queries and keys."""
    far = table.shape[1] // 2
    keys = 7
    bias = np.zeros((2, 2, 3, 4, keys))
    for b, h, m, a, j in np.ndindex(bias.shape):
        index = min(max(distance(b, h, m, a, j), -far), far) + far
        bias[b, h, m, a, j] = QUERY[b, h, m, a] @ table[h, index]
    return bias


@pytest.mark.parametrize("far", [0, 1, 3, 20])
@pytest.mark.parametrize("offset", [0, 3, 9])
def test_window_bias(far, offset):
    table = embeddings(far)
    found = window_bias(tf.constant(QUERY), tf.constant(table), 7, offset)
    expected = equation(table, lambda b, h, m, a, j: a + offset - j)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("far", [0, 1, 3, 20])
@pytest.mark.parametrize("offset", [3, 9])
def test_a_causal_window_leaves_out_later_keys_alone(far, offset):
    table = embeddings(far)
    whole = window_bias(tf.constant(QUERY), tf.constant(table), 7, offset).numpy()
    found = window_bias(tf.constant(QUERY), tf.constant(table), 7, offset, causal=True).numpy()
    seen = np.arange(7) - offset <= np.arange(4)[:, None]
    np.testing.assert_allclose(found[..., seen], whole[..., seen], rtol=0, atol=1e-12)


@pytest.mark.parametrize("far", [0, 1, 3, 20])
def test_pair_bias(far):
    rng = np.random.default_rng(2)
    of_queries = rng.integers(0, 12, size=(2, 2, 3, 4))
    of_keys = rng.integers(0, 12, size=(2, 2, 3, 7))
    table = embeddings(far)
    found = pair_bias(tf.constant(QUERY), tf.constant(table), of_queries, of_keys)
    expected = equation(table, lambda b, h, m, a, j: of_queries[b, h, m, a] - of_keys[b, h, m, j])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("far", [1, 20])
def test_gradients(far):
    positions = np.random.default_rng(2).integers(0, 12, size=(2, 2, 3, 7))

    def by_window(query, table):
        return window_bias(query, table, 7, 3)

    def by_pair(query, table):
        return pair_bias(query, table, tf.constant(positions[..., :4]), tf.constant(positions))

    for bias in (by_window, by_pair):
        upstream = np.random.default_rng(3).normal(size=(2, 2, 3, 4, 7))
        query, table = tf.Variable(QUERY), tf.Variable(embeddings(far))
        with tf.GradientTape() as tape:
            found = bias(query, table)
        gradients = tape.gradient(found, [query, table], upstream)
        # The bias is linear in each.
        for gradient, other in zip(gradients, (query, table)):
            direction = np.random.default_rng(4).normal(size=other.shape)
            moved = bias(*(x + direction if x is other else x for x in (query, table))) - found
            np.testing.assert_allclose(
                np.sum(gradient * direction), np.sum(moved * upstream), rtol=1e-9
            )


def test_dtype_is_the_query_s():
    query = tf.constant(QUERY, tf.bfloat16)
    table = tf.constant(embeddings(2), tf.float32)
    positions = np.zeros((2, 2, 3, 4), np.int32)
    assert window_bias(query, table, 7, 3).dtype == tf.bfloat16
    assert pair_bias(query, table, positions, positions).dtype == tf.bfloat16
