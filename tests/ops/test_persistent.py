import numpy as np
import tensorflow as tf

from rt_keras.ops import full_attention, persistent_attention
from rt_keras.ops.attend import merge_pair
from tests.ops import checks


def test_equation_and_gradients():
    inputs = checks.tensors(checks.arrays(9))
    rng = np.random.default_rng(1)
    keys, values = (tf.constant(rng.normal(size=[2, 3, size])) for size in (6, 5))
    mask = tf.range(9) < tf.constant([[9], [6]])
    cotangent = rng.normal(size=[2, 2, 9, 5])

    def by_op(query, keys, values):
        others = full_attention(
            query, inputs["key"], inputs["value"], query_mask=mask, return_logsumexp=True
        )
        output = merge_pair(others, persistent_attention(query, keys, values))
        return tf.where(mask[:, None, :, None], output, tf.zeros_like(output))

    def at_once(query, keys, values):
        # The persistent keys as more keys.
        keys, values = (
            tf.concat([x, tf.repeat(y[None], 2, axis=0)], axis=2)
            for x, y in ((inputs["key"], keys), (inputs["value"], values))
        )
        return full_attention(query, keys, values, query_mask=mask)

    results = []
    for function in (by_op, at_once):
        sources = [inputs["query"], keys, values]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            output = function(*sources)
            total = tf.reduce_sum(output * cotangent)
        results.append([output, *tape.gradient(total, sources)])
    for found, expected in zip(*results):
        assert np.any(expected)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)


def test_long_blocks_have_the_same_gradients():
    """Attention has custom gradients from 128 queries."""
    query, keys = tf.random.normal([2, 1, 130, 4]), tf.random.normal([1, 3, 4])
    with tf.GradientTape() as tape:
        tape.watch(keys)
        output, _ = persistent_attention(query, keys, keys)
        total = tf.reduce_sum(tf.sin(output))
    assert tape.gradient(total, keys).shape == keys.shape
