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


def test_halving_is_at_the_median_of_the_first_principal_component():
    rng = np.random.default_rng(1)
    direction = np.array([3.0, -4.0, 0.0]) / 5
    place = rng.permutation(np.arange(64) - 31.5)
    key = place[:, None] * direction + 0.1 * rng.normal(size=[64, 3])
    order = content_order(tf.constant(key), tf.fill([64], True), 32).numpy()
    signs = np.sign(place[order])
    assert abs(signs[:32].sum()) == abs(signs[32:].sum()) == 32


def test_keys_that_do_not_count_come_last():
    rng = np.random.default_rng(2)
    key = rng.normal(size=[1, 16, 4])
    real = np.ones([1, 16], bool)
    real[0, [0, 3, 9]] = False
    changed = np.where(real[..., None], key, 100.0)
    orders = [content_order(tf.constant(x), tf.constant(real), 2).numpy() for x in (key, changed)]
    np.testing.assert_array_equal(orders[0], orders[1])
    assert sorted(orders[0][0, -3:]) == [0, 3, 9]


def test_keys_that_are_all_equal_keep_their_order():
    order = content_order(tf.ones([8, 3]), tf.fill([8], True), 2)
    np.testing.assert_array_equal(order, np.arange(8))


def test_rounding_errors_rarely_change_blocks():
    # In a part, keys with almost equal projections change places often, but few are at a median.
    rng = np.random.default_rng(3)
    key = rng.normal(size=[200, 256, 8])
    near = key + 1e-5 * rng.normal(size=key.shape)
    real = tf.fill(key.shape[:2], True)
    blocks = [
        np.sort(content_order(tf.constant(x), real, 4).numpy().reshape(200, 64, 4))
        for x in (key, near)
    ]
    changed = np.any(blocks[0] != blocks[1], axis=(1, 2))
    assert changed.mean() < 0.05
