import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops.content_order import content_order
from tests.ops.test_selected_blocks import by_halves


@pytest.mark.parametrize("length, block_size", [(16, 2), (12, 3), (8, 8), (32, 1)])
def test_equation(length, block_size):
    key = np.random.default_rng(0).normal(size=[2, 3, length, 5])
    order = content_order(tf.constant(key), tf.fill([2, 3, length], True), block_size).numpy()
    for b, h in np.ndindex(2, 3):
        places = list(range(length))
        order_of_loop = by_halves(key[b, h], places, np.ones(length, bool), block_size)
        expected = [set(x) for x in np.reshape(order_of_loop, [-1, block_size])]
        found = [set(block) for block in order[b, h].reshape(-1, block_size)]
        assert found == expected


def test_keys_that_are_all_equal_keep_their_order():
    order = content_order(tf.ones([8, 3]), tf.fill([8], True), 2)
    np.testing.assert_array_equal(order, np.arange(8))
