import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_keras.ops.content_blocks.largest import indices_of_largest_in_groups


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.data())
def test_they_have_the_values_of_a_sort(data):
    count = data.draw(st.integers(1, 5))
    length = 4 * data.draw(st.integers(2, 30)) + data.draw(st.sampled_from([0, 0, 1]))
    values = st.sampled_from([-1e30, -3.5, -1.0, -0.0, 0.0, 0.25, 1.0, 1e30])
    x = np.array(data.draw(st.lists(values, min_size=length, max_size=length)), np.float32)
    found, next_largest = indices_of_largest_in_groups(tf.constant(x[None]), count)
    expected = np.sort(x)[::-1]
    assert len({*found.numpy()[0].tolist()}) == count
    np.testing.assert_array_equal(np.sort(x[found[0]])[::-1], expected[:count])
    assert next_largest[0] == expected[count]


@pytest.mark.parametrize("dtype, jit_compile", [("float64", False), ("bfloat16", True)])
def test_random_rows(dtype, jit_compile):
    x = tf.cast(np.random.default_rng(0).normal(size=[2, 3, 1000]), dtype)
    function = tf.function(lambda x: indices_of_largest_in_groups(x, 100), jit_compile=jit_compile)
    found, next_largest = function(x)
    x = tf.cast(x, tf.float32)
    values, _ = tf.math.top_k(x, 101)
    of_found = tf.gather(x, found, batch_dims=2)
    np.testing.assert_array_equal(tf.sort(of_found, direction="DESCENDING"), values[..., :100])
    np.testing.assert_array_equal(tf.cast(next_largest, tf.float32), values[..., 100])
