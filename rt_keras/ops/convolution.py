"""A short depthwise causal convolution over the positions."""

import functools

import numpy as np
import tensorflow as tf

from rt_keras.ops.blocks import pad_axis, places_of_rows, size, sizes, take_places
from rt_keras.ops.documents import positions_in_documents, reduce_in_documents


def naive_convolution(x, kernel, mask=None):
    """The equation of `causal_convolution`: the sum of shifted vectors, weighted."""
    if mask is not None:
        x = np.where(mask[:, None, :, None], x, 0)
    length, output = x.shape[2], np.zeros_like(x)
    for shift in range(min(kernel.shape[1], length)):
        output[:, :, shift:] += kernel[:, None, shift] * x[:, :, : length - shift]
    return output


def causal_convolution(x, kernel, *, mask=None, before=None, documents=None):
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
        documents: int `[batch, length]`, see `rt_keras.ops.documents.number_documents`, to leave
            out other documents; or None. Defaults to None.

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
    return _convolve(x, kernel, documents)


def _convolve(x, kernel, documents):
    """Computes the convolution of `x`, which starts `width - 1` positions before the output."""
    width = kernel.shape[1]
    length, before, after = size(x, 2) - width + 1, None, None
    if documents is not None:
        # Numbers of positions of the document before and after each one, [batch, 1, length, 1].
        before = positions_in_documents(documents)
        after = reduce_in_documents(tf.math.unsorted_segment_max, before, documents) - before
        before, after = before[:, None, :, None], after[:, None, :, None]
        # Vectors before the first position are in none of them.
        after = pad_axis(after, 2, width - 1, 0, -1)

    def weighted_sum(x, kernel):
        parts = _shifts(x, length, reversed(range(width)), before)
        return _weighted(parts, kernel), functools.partial(gradients, x, kernel)

    def gradients(x, kernel, upstream):
        # Sums over positions are products with ones, and no slice has a gradient: this is four
        # times as fast on a CPU.
        ones = tf.ones([length], upstream.dtype)
        kernel_gradient = [
            tf.reduce_sum(tf.einsum("n,bhnd->bhd", ones, part * upstream), axis=0)
            for part in _shifts(x, length, reversed(range(width)), before)
        ]
        padded = tf.pad(upstream, [[0, 0], [0, 0], [width - 1, width - 1], [0, 0]])
        parts = _shifts(padded, size(x, 2), range(width), after)
        return _weighted(parts, kernel), tf.stack(kernel_gradient, axis=1)

    return tf.custom_gradient(weighted_sum)(x, kernel)


def _shifts(x, length, starts, room):
    """Cuts `x` at distances 0, 1, ...; with 0 where a document has less room than that."""
    batch, heads, _, depth = sizes(x)
    parts = [tf.slice(x, [0, 0, start, 0], [batch, heads, length, depth]) for start in starts]
    if room is None:
        return parts
    return [tf.where(room >= i, part, tf.zeros_like(part)) for i, part in enumerate(parts)]


def _weighted(parts, kernel):
    kernels = tf.unstack(tf.expand_dims(kernel, 2), axis=1)  # [heads, 1, depth] for each distance
    return tf.add_n([part * weight for part, weight in zip(parts, kernels, strict=True)])


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
