"""Cutting sequences into blocks, and reading rows of them, with gradients that gather."""

import tensorflow as tf


def size(x, axis):
    """Size of an axis: an int where it is known when traced, else a scalar tensor."""
    static = x.shape[axis]
    return tf.shape(x)[axis] if static is None else static


def ceil_div(numerator, denominator):
    """Integer division rounded up, for ints and tensors alike."""
    return -(-numerator // denominator)


def move_axis(x, source, destination):
    """Moves one axis of `x` to another place."""
    order = [axis for axis in range(x.shape.rank) if axis != source]
    order.insert(destination, source)
    return tf.transpose(x, order)


def pad_axis(x, axis, before, after, fill=0):
    """Pads one axis of `x` with a constant."""
    paddings = [[0, 0]] * x.shape.rank
    paddings[axis] = [before, after]
    return tf.pad(x, paddings, constant_values=tf.cast(fill, x.dtype))


def split_blocks(x, num_blocks, block_size, fill=0):
    """`[batch, heads, length, ...]` to `[batch, heads, num_blocks, block_size, ...]`, padded."""
    x = pad_axis(x, 2, 0, num_blocks * block_size - size(x, 2), fill)
    shape = [size(x, axis) for axis in range(x.shape.rank)]
    return tf.reshape(x, [*shape[:2], num_blocks, block_size, *shape[3:]])


def join_blocks(x, length):
    """`[batch, heads, num_blocks, block_size, ...]` to `[batch, heads, length, ...]`."""
    shape = [size(x, axis) for axis in range(x.shape.rank)]
    return tf.reshape(x, [*shape[:2], shape[2] * shape[3], *shape[4:]])[:, :, :length]


def overlapping_blocks(x, num_blocks, block_size, count, offset, fill=0):
    """Windows of `count` blocks, one for each block; window t starts at `t * block_size - offset`.

    Args:
        x: `[batch, heads, length, ...]`.
        num_blocks: number of windows.
        block_size: distance from one window's start to the next's.
        count: length of a window in blocks.
        offset: how far before its block a window starts.
        fill: value beyond both ends.

    Returns:
        `[batch, heads, num_blocks, count * block_size, ...]`.
    """
    after = (num_blocks + count - 1) * block_size - offset - size(x, 2)
    x = pad_axis(x, 2, offset, after, fill)
    x = split_blocks(x, num_blocks + count - 1, block_size)
    return tf.concat([x[:, :, i : i + num_blocks] for i in range(count)], axis=3)


def gather_rows(x, index, inverse):
    """`x[:, :, index]`, with a gradient that gathers where TensorFlow's own would scatter.

    Args:
        x: `[batch, heads, rows, depth]`.
        index: int `[batch, heads, m]`, rows of `x` to read.
        inverse: int `[batch, heads, rows]`, for each row of `x` the one place of the result
            through which it is used. Another place may repeat the row only if nothing
            downstream depends on it.

    Returns:
        `[batch, heads, m, depth]`.
    """

    @tf.custom_gradient
    def gather(x):
        return tf.gather(x, index, batch_dims=2), lambda upstream: tf.gather(
            upstream, inverse, batch_dims=2
        )

    return gather(x)
