"""Small triangular systems, solved for many matrices at once with matrix products."""

import tensorflow as tf

from rt_keras.ops.blocks import sizes


@tf.custom_gradient
def solve_unit_triangular(matrix, right):
    """Solves `(I + L) solution = right`, where L is the part of a matrix below its diagonal.

    The inverse is that of blocks along the diagonal, which double in size until there is one:

    ```
    [A 0]⁻¹   [    A⁻¹       0 ]
    [B D]   = [-D⁻¹ B A⁻¹   D⁻¹]
    ```

    On a CPU, this is faster than `tf.linalg.triangular_solve` compiled with XLA, which substitutes
    row by row, and the gradient only multiplies by the same inverse.

    Args:
        matrix: `[..., n, n]`, with static n.
        right: `[..., n, columns]`.

    Returns:
        A tensor like `right`.

    >>> matrix = tf.constant([[0.0, 0.0], [2.0, 0.0]])
    >>> solve_unit_triangular(matrix, tf.ones([2, 1])).numpy().ravel().tolist()
    [1.0, -1.0]
    """
    inverse = _inverse(matrix)
    solution = tf.matmul(inverse, right)

    def gradients(upstream):
        of_right = tf.matmul(inverse, upstream, transpose_a=True)
        places = tf.range(matrix.shape[-1])
        of_matrix = tf.matmul(of_right, solution, transpose_b=True)
        return tf.where(places < places[:, None], -of_matrix, 0), of_right

    return solution, gradients


def _inverse(matrix):
    """Computes the inverse of I + L; see `solve_unit_triangular`."""
    *shape, _, size = sizes(matrix)
    padding = max(2 ** (size - 1).bit_length(), 2) - size
    matrix = tf.pad(matrix, [[0, 0]] * len(shape) + [[0, padding]] * 2)
    inverse = _inverse_of_squares(tf.reshape(matrix, [-1, size + padding, size + padding]))
    return tf.reshape(inverse, [*shape, size + padding, size + padding])[..., :size, :size]


def _inverse_of_squares(matrices):
    """Computes the inverses of `[count, n, n]`, where n is a power of two of at least 2."""
    size = matrices.shape[-1]
    if size == 2:
        identity = tf.eye(2, dtype=matrices.dtype)
        return identity - tf.constant([[0, 0], [1, 0]], matrices.dtype) * matrices
    upper, lower = tf.split(matrices, 2, axis=1)
    first, above = tf.split(upper, 2, axis=2)
    below, second = tf.split(lower, 2, axis=2)
    first, second = tf.split(_inverse_of_squares(tf.concat([first, second], axis=0)), 2)
    below = -tf.matmul(second, tf.matmul(below, first))
    upper = tf.concat([first, tf.zeros_like(above)], axis=2)
    return tf.concat([upper, tf.concat([below, second], axis=2)], axis=1)
