"""A short convolution of each dimension over the positions up to its own."""

import tensorflow as tf

from rt_keras.ops.blocks import pad_axis, size


def causal_convolution(x, kernel, *, mask=None, before=None):
    """The sum of each vector and those shortly before it, weighted dimension by dimension.

    ```
    output_i = sum_(s < width) kernel_s ⊙ x_(i - s)
    ```

    Args:
        x: `[batch, heads, length, depth]`.
        kernel: `[heads, width, depth]`.
        mask: bool `[batch, length]`, False for padding, which counts as 0; or None.
        before: `[batch, heads, width - 1, depth]`, what comes before the first position; None, the
            default, for zeros.

    Returns:
        `[batch, heads, length, depth]`, in x's dtype.

    >>> x = tf.reshape([1.0, 2.0, 3.0], [1, 1, 3, 1])
    >>> kernel = tf.reshape([1.0, 0.5], [1, 2, 1])
    >>> causal_convolution(x, kernel).numpy().ravel().tolist()
    [1.0, 2.5, 4.0]
    """
    x = tf.convert_to_tensor(x)
    kernel, width, length = tf.cast(kernel, x.dtype), kernel.shape[1], size(x, 2)
    if mask is not None:
        x = tf.where(tf.cast(mask, tf.bool)[:, None, :, None], x, tf.zeros_like(x))
    if before is None:
        x = pad_axis(x, 2, width - 1, 0)
    else:
        x = tf.concat([tf.cast(before, x.dtype), x], axis=2)
    return tf.add_n(
        [
            x[:, :, width - 1 - shift : width - 1 - shift + length] * kernel[:, shift, None]
            for shift in range(width)
        ]
    )


def last_vectors(x, count, number):
    """The last `number` of the first `count` vectors, zeros where there are fewer.

    Args:
        x: `[batch, heads, length, depth]`.
        count: int scalar.
        number: int.

    Returns:
        `[batch, heads, number, depth]`, what `causal_convolution` takes as `before`.
    """
    x = pad_axis(tf.convert_to_tensor(x), 2, number, 0)
    return tf.gather(x, count + tf.range(number), axis=2)
