import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops.triangular import solve_unit_triangular


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("size", [1, 2, 7, 16])
def test_solution_and_gradients(size, jit_compile):
    rng = np.random.default_rng(size)
    matrix, right = tf.constant(rng.normal(size=(3, size, size))), rng.normal(size=(3, size, 4))
    right, upstream = tf.constant(right), rng.normal(size=right.shape)

    @tf.function(jit_compile=jit_compile)
    def solve():
        with tf.GradientTape() as tape:
            tape.watch([matrix, right])
            solution = solve_unit_triangular(matrix, right)
        return solution, *tape.gradient(solution, [matrix, right], upstream)

    def expected():
        with tf.GradientTape() as tape:
            tape.watch([matrix, right])
            below = tf.linalg.band_part(matrix, -1, 0) - tf.linalg.band_part(matrix, 0, 0)
            solution = tf.linalg.inv(tf.eye(size, dtype=matrix.dtype) + below) @ right
        return solution, *tape.gradient(solution, [matrix, right], upstream)

    for found, wanted in zip(solve(), expected()):
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)
