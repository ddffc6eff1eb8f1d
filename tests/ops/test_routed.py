import numpy as np
import tensorflow as tf

from rt_keras.ops.routed import Routing


def test_scaled_queries():
    query = tf.random.normal([1, 2, 3, 4])
    scaled = Routing(tf.zeros([2, 1, 4]), scale=tf.constant([1.0, 4.0])).scaled(query)
    np.testing.assert_allclose(scaled, query * np.array([0.5, 2.0])[:, None, None], rtol=1e-6)
