import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops.convolution import causal_convolution, naive_convolution
from tests.ops import checks


def arrays(length, width):
    rng = np.random.default_rng(0)
    return rng.normal(size=(2, 3, length, 4)), rng.normal(size=(3, width, 4))


@pytest.mark.parametrize("length", [0, 1, 7])
@pytest.mark.parametrize("kind", ["left", "scattered"])
def test_equation(length, kind):
    x, kernel = arrays(length, 3)
    mask = checks.mask(kind, length)
    # The content of padding must not matter.
    x = np.where(mask[:, None, :, None], x, np.nan)
    expected = naive_convolution(x, kernel, mask)
    np.testing.assert_allclose(causal_convolution(x, kernel, mask=mask), expected, atol=1e-12)


def test_lower_precision():
    x, kernel = arrays(9, 4)
    found = causal_convolution(tf.cast(x, tf.bfloat16), kernel)
    assert found.dtype == tf.bfloat16
    expected = naive_convolution(x, kernel)
    np.testing.assert_allclose(tf.cast(found, tf.float64), expected, rtol=0, atol=0.1)


@pytest.mark.parametrize("length, width", [(1, 4), (7, 1), (7, 4)])
def test_gradients(length, width):
    # The output is linear in each argument, so a gradient times a change is what it changes.
    x, kernel = arrays(length, width)
    rng = np.random.default_rng(1)
    upstream, of_x, of_kernel = (rng.normal(size=a.shape) for a in (x, x, kernel))
    given = [tf.constant(x), tf.constant(kernel)]
    with tf.GradientTape() as tape:
        tape.watch(given)
        output = causal_convolution(*given)
    found = tape.gradient(output, given, upstream)
    for gradient, change, changed in zip(
        found, (of_x, of_kernel), ((of_x, kernel), (x, of_kernel))
    ):
        expected = np.sum(upstream * naive_convolution(*changed))
        assert np.sum(gradient * change) == pytest.approx(expected, abs=1e-12)
