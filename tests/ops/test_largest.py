import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_keras.ops.largest import indices_of_largest


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_they_are_those_of_a_stable_sort(data):
    length = data.draw(st.integers(1, 40))
    count = data.draw(st.integers(1, length))
    # Few values, so that many are equal.
    values = st.sampled_from([-1e30, -3.5, -1.0, -0.0, 0.0, 0.25, 1.0, 1e30])
    rows = data.draw(st.lists(st.lists(values, min_size=length, max_size=length), max_size=3))
    x = np.array(rows or [[0.0] * length], np.float32)
    expected = np.argsort(-x, kind="stable")
    found, next_largest = indices_of_largest(tf.constant(x), count)
    np.testing.assert_array_equal(np.sort(found), np.sort(expected[:, :count]))
    left_out = np.take_along_axis(x, expected[:, count:], axis=1)
    np.testing.assert_array_equal(next_largest, left_out.max(axis=1, initial=-np.inf))


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_random_rows(dtype, jit_compile):
    x = tf.cast(np.random.default_rng(0).normal(size=[2, 3, 1000]), dtype)
    function = tf.function(lambda x: indices_of_largest(x, 100), jit_compile=jit_compile)
    found, next_largest = function(x)
    values, expected = tf.math.top_k(tf.cast(x, tf.float32), 101)
    np.testing.assert_array_equal(np.sort(found), np.sort(expected[..., :100]))
    np.testing.assert_array_equal(tf.cast(next_largest, tf.float32), values[..., 100])
