import numpy as np
import pytest
import tensorflow as tf

from rt_keras.t2t.ops.relative import window_bias, window_values

QUERY = np.random.default_rng(0).normal(size=(2, 2, 3, 4, 5))
WEIGHTS = np.random.default_rng(5).random(size=(2, 2, 3, 4, 7))


def embeddings(far):
    return np.random.default_rng(1).normal(size=(1, 2 * far + 1, 5))


def vectors(table, offset):
    """Returns the vector of each query and key of a block, `[queries, keys, depth]`."""
    far = table.shape[1] // 2
    distance = np.arange(4)[:, None] + offset - np.arange(7)
    return table[0, np.clip(distance, -far, far) + far]


@pytest.mark.parametrize("far", [0, 1, 3, 20])
@pytest.mark.parametrize("offset", [0, 3, 9])
def test_equations(far, offset):
    table = embeddings(far)
    found = window_bias(tf.constant(QUERY), tf.constant(table), 7, offset, causal=False)
    expected = np.einsum("bhmad,ajd->bhmaj", QUERY, vectors(table, offset))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    found = window_values(tf.constant(WEIGHTS), tf.constant(table), offset, causal=False)
    expected = np.einsum("bhmaj,ajd->bhmad", WEIGHTS, vectors(table, offset))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("far", [0, 1, 3, 20])
def test_causal_windows(far):
    table, offset = embeddings(far), 3
    seen = np.arange(7) - offset <= np.arange(4)[:, None]
    whole = window_bias(tf.constant(QUERY), tf.constant(table), 7, offset, causal=False).numpy()
    found = window_bias(tf.constant(QUERY), tf.constant(table), 7, offset, causal=True).numpy()
    np.testing.assert_allclose(found[..., seen], whole[..., seen], rtol=0, atol=1e-12)
    # A query without keys gives all of them weight 1.
    weights = WEIGHTS * seen
    weights[:, :, 1, 2] = 1.0
    found = window_values(tf.constant(weights), tf.constant(table), offset, causal=True)
    expected = window_values(tf.constant(weights), tf.constant(table), offset, causal=False)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def of_query(query, table):
    return window_bias(query, table, 7, 3, causal=False)


def of_weights(weights, table):
    return window_values(weights, table, 3, causal=False)


@pytest.mark.parametrize("op, x", [(of_query, QUERY), (of_weights, WEIGHTS)])
def test_gradients(op, x):
    x, table = tf.Variable(x), tf.Variable(embeddings(2))
    with tf.GradientTape() as tape:
        found = op(x, table)
    upstream = np.random.default_rng(3).normal(size=found.shape)
    # Both are linear in each of their arguments.
    for gradient, other in zip(tape.gradient(found, [x, table], upstream), (x, table)):
        np.testing.assert_allclose(np.sum(gradient * other), np.sum(found * upstream), rtol=1e-9)
