import numpy as np
import tensorflow as tf

from rt_keras.layers import Heads, MultiHeadAttention
from rt_keras.layers.key_sets import Everything, Persistent
from tests.layers import checks


def test_unknown_and_empty_lengths():
    # Persistent values are added to weighted sums of the others.
    layer = MultiHeadAttention([Heads(2, [Everything(), Persistent(3)])], 4)
    layer.build((None, None, 6), (None, None, 6))

    @tf.function(input_signature=[tf.TensorSpec([None, None, 6])])
    def scores_of(x):
        return layer(x, x, return_attention_scores=True)[1]

    for length in (0, 3, 4, 9):
        x = tf.constant(checks.random(2, length, 6))
        found, expected = scores_of(x), layer(x, x, return_attention_scores=True)[1]
        assert found.shape == (2, 2, length, length)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
