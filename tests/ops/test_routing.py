import numpy as np
import tensorflow as tf

from rt_keras.ops import cluster_statistics, commitment, normalize
from rt_keras.ops.naive import naive_normalize


def test_normalize_of_a_constant_vector_is_0():
    x = tf.constant([[3.0, 3.0, 3.0, 3.0], [0.0, 0.0, 0.0, 0.0]])
    with tf.GradientTape() as tape:
        tape.watch(x)
        found = normalize(x)
    assert not np.any(found)
    assert np.all(np.isfinite(tape.gradient(found, x)))


def test_normalize_computes_in_float32():
    # In bfloat16 the mean of such vectors would lose the differences between their entries.
    x = tf.constant(np.random.default_rng(0).normal(size=(4, 64)), tf.bfloat16)
    found = normalize(x)
    assert found.dtype == tf.bfloat16
    expected = naive_normalize(np.array(tf.cast(x, tf.float64)))
    np.testing.assert_allclose(tf.cast(found, tf.float64), expected, rtol=2**-8, atol=0)
    assert normalize(tf.cast(x, tf.float32)).dtype == tf.float32


def test_cluster_statistics_of_bfloat16_are_float32_without_a_gradient():
    # bfloat16 cannot count beyond 256.
    x = tf.ones([1, 1, 1000, 2], tf.bfloat16)
    with tf.GradientTape() as tape:
        tape.watch(x)
        sums, counts = cluster_statistics(x, tf.zeros([1, 1, 1000], tf.int32), 2)
    assert tape.gradient(sums, x) is None
    assert sums.dtype == counts.dtype == tf.float32
    assert counts.numpy().tolist() == [[1000.0, 0.0]]
    assert sums.numpy().tolist() == [[[1000.0, 1000.0], [0.0, 0.0]]]


def test_commitment_pulls_vectors_to_their_centroids():
    rng = np.random.default_rng(0)
    x, clusters = tf.constant(rng.normal(size=(1, 1, 4, 3))), tf.constant([[[0, 1, 1, 0]]])
    centroids = tf.constant(rng.normal(size=(1, 2, 3)))
    mask = [[True, True, True, False]]
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = commitment(x, clusters, centroids, mask)
    away = x - tf.gather(centroids, clusters, axis=1)[0]
    expected = 2 / 3 * away * tf.cast(mask, tf.float64)[:, None, :, None]
    np.testing.assert_allclose(tape.gradient(loss, x), expected, rtol=0, atol=1e-12)


def test_commitment_where_all_is_padding():
    x = tf.ones([1, 1, 2, 3])
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = commitment(x, tf.zeros([1, 1, 2], tf.int32), tf.zeros([1, 2, 3]), [[False, False]])
    assert loss == 0
    assert not np.any(tape.gradient(loss, x))
