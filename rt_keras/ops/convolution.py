"""A short depthwise causal convolution over the positions."""

import tensorflow as tf

from rt_keras.ops.blocks import pad_axis, places_of_rows, size, sizes, take_places


def causal_convolution(x, kernel, *, mask=None, before=None):
    """Computes a depthwise causal convolution: a weighted sum of each vector and those before it.

    ```
    output_i = sum_(s < width) kernel_s ⊙ x_(i - s)
    ```

    Args:
        x: `[batch, heads, length, depth]`.
        kernel: `[heads, width, depth]`.
        mask: bool `[batch, length]`, False for padding, which counts as 0; or None.
        before: `[batch, heads, width - 1, depth]`, the vectors before the first position. Defaults
            to None, for zeros.

    Returns:
        `[batch, heads, length, depth]`, in the dtype of `x`.

    >>> x = tf.reshape([1.0, 2.0, 3.0], [1, 1, 3, 1])
    >>> kernel = tf.reshape([1.0, 0.5], [1, 2, 1])
    >>> causal_convolution(x, kernel).numpy().ravel().tolist()
    [1.0, 2.5, 4.0]
    """
    x = tf.convert_to_tensor(x)
    kernel, width = tf.cast(kernel, x.dtype), kernel.shape[1]
    if mask is not None:
        x = tf.where(tf.cast(mask, tf.bool)[:, None, :, None], x, tf.zeros_like(x))
    if before is None:
        x = pad_axis(x, 2, width - 1, 0)
    else:
        x = tf.concat([tf.cast(before, x.dtype), x], axis=2)
    return _convolved(x, kernel)


@tf.custom_gradient
def _convolved(x, kernel):
    """Computes the convolution of `x`, which starts `width - 1` positions before the output."""
    width = kernel.shape[1]
    length = size(x, 2) - width + 1

    def gradients(upstream):
        # Sums over positions are products with ones, and no slice has a gradient: this is four
        # times as fast on a CPU.
        ones = tf.ones([length], upstream.dtype)
        of_kernel = [
            tf.reduce_sum(tf.einsum("n,bhnd->bhd", ones, part * upstream), axis=0)
            for part in _shifts(x, length, reversed(range(width)))
        ]
        padded = tf.pad(upstream, [[0, 0], [0, 0], [width - 1, width - 1], [0, 0]])
        of_x = _weighted(_shifts(padded, size(x, 2), range(width)), kernel)
        return of_x, tf.stack(of_kernel, axis=1)

    return _weighted(_shifts(x, length, reversed(range(width))), kernel), gradients


def _shifts(x, length, starts):
    batch, heads, _, depth = sizes(x)
    return [tf.slice(x, [0, 0, start, 0], [batch, heads, length, depth]) for start in starts]


def _weighted(parts, kernel):
    kernels = tf.unstack(tf.expand_dims(kernel, 2), axis=1)
    return tf.add_n([part * of_shift for part, of_shift in zip(parts, kernels, strict=True)])


def last_vectors(x, count, number, before=None):
    """Returns the last `number` of the first `count` vectors, after `before` if there are fewer.

    Args:
        x: `[batch, heads, length, depth]`.
        count: int scalar, or int `[batch]`.
        number: int.
        before: `[batch, heads, number, depth]`, the vectors before the first position. Defaults to
            None, for zeros.

    Returns:
        `[batch, heads, number, depth]`, the argument `before` of `causal_convolution`.
    """
    x = tf.convert_to_tensor(x)
    if before is None:
        x = pad_axis(x, 2, number, 0)
    else:
        x = tf.concat([before, tf.cast(x, before.dtype)], axis=2)
    return take_places(x, places_of_rows(tf.cast(count, tf.int32), tf.range(number)))
