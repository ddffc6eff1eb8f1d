"""Shapes, blocks and windows of sequences, and gathers whose gradients are gathers too."""

import itertools
import math

import tensorflow as tf


def size(x, axis):
    """Size of an axis: an int if it is static, else a scalar tensor."""
    static = x.shape[axis]
    # One operation, where an index would be four.
    return tf.unstack(tf.shape(x))[axis] if static is None else static


def sizes(x):
    """Sizes of all axes: ints where they are static, else scalar tensors."""
    static = list(x.shape)
    if None not in static:
        return static
    return [a if b is None else b for a, b in zip(tf.unstack(tf.shape(x)), static)]


def ceil_div(numerator, denominator):
    """Integer division rounded up, for ints and tensors."""
    return -(-numerator // denominator)


def move_axis(x, source, destination):
    """Moves one axis of `x` to another position."""
    order = [axis for axis in range(x.shape.rank) if axis != source]
    order.insert(destination, source)
    return tf.transpose(x, order)


def pad_axis(x, axis, before, after, fill=0):
    """Pads one axis of `x` with a constant."""
    if not (tf.is_tensor(before) or tf.is_tensor(after) or before or after):
        return x
    paddings = [[0, 0]] * x.shape.rank
    paddings[axis] = [before, after]
    fill = tf.cast(fill, x.dtype) if tf.is_tensor(fill) else fill
    return tf.pad(x, paddings, constant_values=fill)


def repeat_heads(x, heads, axis=1):
    """Repeats each head consecutively to get a given number of heads.

    Args:
        x: a tensor with the heads on one axis, or None.
        heads: int, number of heads of the result, a multiple of that of `x`.
        axis: int, the axis of the heads. Defaults to 1.

    Returns:
        A tensor with `heads` heads, or `x` itself if it has that many or is None.
    """
    if x is None or x.shape[axis] == heads:
        return x
    shape = sizes(x)
    before, after = shape[:axis], shape[axis + 1 :]
    repeats = [*before, shape[axis], heads // shape[axis], *after]
    return tf.reshape(
        tf.broadcast_to(tf.expand_dims(x, axis + 1), repeats), [*before, heads, *after]
    )


def fold_heads(x, heads):
    """Joins consecutive heads into one head, with their positions one after the other.

    `fold_heads(folded, more_heads)` is the inverse.

    Args:
        x: `[batch, more_heads, length, ...]`.
        heads: int, number of heads of the result.

    Returns:
        `[batch, heads, more_heads / heads * length, ...]`.
    """
    if x.shape[1] == heads:
        return x
    batch, many, length, *inner = sizes(x)
    return tf.reshape(x, [batch, heads, many * length // heads, *inner])


def join_groups(x, heads):
    """Joins the rows of consecutive heads in each block into those of one head.

    Args:
        x: `[batch, more_heads, blocks, rows, ...]`.
        heads: int, number of heads of the result.

    Returns:
        `[batch, heads, blocks, more_heads / heads * rows, ...]`, one head after the other.
    """
    if x.shape[1] == heads:
        return x
    batch, many, blocks, rows, *inner = sizes(x)
    x = move_axis(tf.reshape(x, [batch, heads, many // heads, blocks, rows, *inner]), 2, 3)
    return tf.reshape(x, [batch, heads, blocks, many // heads * rows, *inner])


def split_groups(x, heads):
    """Inverts `join_groups`; `heads` is the original number of heads."""
    if x.shape[1] == heads:
        return x
    batch, few, blocks, rows, *inner = sizes(x)
    x = tf.reshape(x, [batch, few, blocks, heads // few, rows * few // heads, *inner])
    return tf.reshape(move_axis(x, 3, 2), [batch, heads, blocks, rows * few // heads, *inner])


def repeat_rows(mask, count):
    """Repeats all rows of a mask `[..., rows, keys]`, `[..., count * rows, keys]`."""
    return tf.tile(mask, [*[1] * (mask.shape.rank - 2), count, 1])


def real_positions(length, mask):
    """Returns which positions are not padding, bool `[batch or 1, length]`, by a mask or None."""
    return tf.ones([1, length], tf.bool) if mask is None else tf.cast(mask, tf.bool)


def with_a_position(attend, arguments):
    """Calls an attention function on sequences that may be empty, with at least one position.

    Sorting needs a position, so empty sequences are padded with one.

    Args:
        attend: function of a dictionary like `arguments`, which returns
            `[batch, heads, length, ...]`, or a tuple of such tensors.
        arguments: dictionary of arguments of an op, including "query".

    Returns:
        The result of `attend`, without the added position.
    """
    length, added = size(arguments["query"], 2), {}
    if tf.is_tensor(length) or length == 0:
        axes = dict.fromkeys(("query", "key", "value"), 2)
        axes |= dict.fromkeys(("query_mask", "key_mask", "documents"), 1)
        missing = 1 - tf.minimum(length, 1)
        added = {
            name: pad_axis(arguments[name], axis, 0, missing)
            for name, axis in axes.items()
            if arguments.get(name) is not None
        }
    outputs = attend({**arguments, **added})
    return tf.nest.map_structure(lambda x: x[:, :, :length], outputs) if added else outputs


def shift_left(x, axis):
    """Shifts `x` left by one along an axis, with zeros at the end."""
    cut = (slice(None),) * axis
    return pad_axis(x[(*cut, slice(1, None))], axis, 0, 1)


def shift_right(x, axis):
    """Shifts `x` right by one along an axis, with zeros at the start."""
    cut = (slice(None),) * axis
    return pad_axis(x, axis, 1, 0)[(*cut, slice(-1))]


def split_blocks(x, num_blocks, block_size, fill=0):
    """Pads axis 2 and splits it into blocks, `[batch, heads, num_blocks, block_size, ...]`."""
    x = pad_axis(x, 2, 0, num_blocks * block_size - size(x, 2), fill)
    shape = sizes(x)
    return tf.reshape(x, [*shape[:2], num_blocks, block_size, *shape[3:]])


def join_blocks(x, length):
    """Joins `[batch, heads, num_blocks, block_size, ...]` to `[batch, heads, length, ...]`."""
    x = flatten_blocks(x)
    is_all = not tf.is_tensor(length) and x.shape[2] == length
    return x if is_all else x[:, :, :length]


def flatten_blocks(x):
    """Joins axes 2 and 3, `[batch, heads, a, b, ...]`, to `[batch, heads, a * b, ...]`."""
    shape = sizes(x)
    return tf.reshape(x, [*shape[:2], shape[2] * shape[3], *shape[4:]])


def overlapping_blocks(x, num_blocks, block_size, count, offset):
    """Windows of `count` blocks, one for each block; window t starts at `t * block_size - offset`.

    Windows hold 0 beyond both ends of the sequence.

    Args:
        x: `[batch, heads, length, ...]`.
        num_blocks: int, number of windows.
        block_size: int, distance from the start of one window to the next.
        count: int, length of a window in blocks.
        offset: int, number of positions by which a window starts before its block.

    Returns:
        `[batch, heads, num_blocks, count * block_size, ...]`.
    """
    after = (num_blocks + count - 1) * block_size - offset - size(x, 2)
    x = pad_axis(x, 2, offset, after)
    x = split_blocks(x, num_blocks + count - 1, block_size)
    return tf.concat([x[:, :, i : i + num_blocks] for i in range(count)], axis=3)


def neighbour_blocks(x, block_size, grid, before, after, first=0):
    """Windows of the blocks around each block of a grid, one window for each block.

    Blocks are in raster order, in the grid and in a window. Blocks beyond the edges hold 0.

    Args:
        x: `[batch, heads, length, ...]`, in the order of the blocks, at most as long as the grid.
        block_size: int, positions in a block.
        grid: tuple of ints, number of blocks along each dimension.
        before: tuple of ints, number of blocks in a window before its own, along each dimension.
        after: tuple of ints, number of blocks in a window after its own, along each dimension.
        first: int, number of leading blocks without a window, at most `before`, for a grid of one
            dimension. Defaults to 0.

    Returns:
        `[batch, heads, blocks - first, block_size * prod(before + 1 + after), ...]`.
    """
    x = split_blocks(x, math.prod(grid), block_size)
    batch, heads, *inner = (size(x, axis) for axis in range(x.shape.rank) if axis != 2)
    x = tf.reshape(x, [batch, heads, *grid, *inner])
    for axis, (low, high) in enumerate(zip(before, after)):
        x = pad_axis(x, 2 + axis, low - first, high)
    grid = (grid[0] - first, *grid[1:])
    num_blocks = math.prod(grid)
    whole, windows = slice(None), []
    for starts in itertools.product(*(range(a + 1 + b) for a, b in zip(before, after))):
        cut = tuple(slice(start, start + count) for start, count in zip(starts, grid))
        windows.append(tf.reshape(x[(whole, whole, *cut)], [batch, heads, num_blocks, *inner]))
    return tf.concat(windows, axis=3)


def gather_rows(x, index, inverse):
    """Gathers `x[:, :, index]` with a gradient that gathers too; TensorFlow's own scatters.

    Args:
        x: `[batch, heads, rows, ...]`.
        index: int `[batch, heads, m]`, rows of `x` to read.
        inverse: int `[batch, heads, rows]`, for each row of `x` its index in the result. Other
            indices may repeat the row only if nothing depends on them.

    Returns:
        `[batch, heads, m, ...]`.
    """

    @tf.custom_gradient
    def gather(x):
        return tf.gather(x, index, batch_dims=2), lambda upstream: tf.gather(
            upstream, inverse, batch_dims=2
        )

    return gather(x)


def places_of_rows(position, offsets):
    """Computes `position + offsets` for each row; `[1, n]` if all rows are at the same position.

    Args:
        position: int scalar, or int `[batch]`.
        offsets: int, or int `[n]`.
    """
    return tf.reshape(position, [-1, 1]) + offsets


def take_places(x, places):
    """Gathers `x[row, :, places[row]]` for each row of the batch.

    Args:
        x: `[batch, heads, length, ...]`.
        places: int `[batch, n]`, or `[1, n]` for the same indices in all rows.

    Returns:
        `[batch, heads, n, ...]`.
    """
    if places.shape[0] == 1:
        return tf.gather(x, places[0], axis=2)
    return tf.gather(x, places, axis=2, batch_dims=1)


def to_blocks(x, block_shape):
    """Reorders the positions of an image, or of any grid, into one sequence, block by block.

    Blocks are in raster order, and so are positions inside a block. `from_blocks` is the inverse.

    Args:
        x: `[batch, d1, ..., dn, ...]`.
        block_shape: tuple of ints `(b1, ..., bn)`, which divide `d1, ..., dn`.

    Returns:
        `[batch, d1 * ... * dn, ...]`.

    Raises:
        ValueError: if `block_shape` does not divide the dimensions.

    Source: Parmar et al. 2018, Image Transformer, section 3.1.

    >>> to_blocks(tf.reshape(tf.range(16), [1, 4, 4]), (2, 2)).numpy().tolist()
    [[0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15]]
    """
    dims, inner = x.shape[1 : len(block_shape) + 1], x.shape[len(block_shape) + 1 :]
    counts = _grid(dims, block_shape)
    split = [side for pair in zip(counts, block_shape) for side in pair]
    x = tf.reshape(x, [-1, *split, *inner])
    n = len(block_shape)
    order = [0, *range(1, 2 * n, 2), *range(2, 2 * n + 1, 2)]
    x = tf.transpose(x, [*order, *range(2 * n + 1, x.shape.rank)])
    return tf.reshape(x, [-1, math.prod(dims), *inner])


def from_blocks(x, block_shape, shape):
    """Inverts `to_blocks`.

    Args:
        x: `[batch, d1 * ... * dn, ...]`.
        block_shape: tuple of ints `(b1, ..., bn)`.
        shape: tuple of ints `(d1, ..., dn)`.

    Returns:
        `[batch, d1, ..., dn, ...]`.

    Raises:
        ValueError: if `block_shape` does not divide `shape`.

    Source: Parmar et al. 2018, Image Transformer, section 3.1.

    >>> x = tf.reshape(tf.range(16), [1, 4, 4])
    >>> bool(tf.reduce_all(from_blocks(to_blocks(x, (2, 2)), (2, 2), (4, 4)) == x))
    True
    """
    inner, n = x.shape[2:], len(shape)
    x = tf.reshape(x, [-1, *_grid(shape, block_shape), *block_shape, *inner])
    order = [axis for pair in zip(range(1, n + 1), range(n + 1, 2 * n + 1)) for axis in pair]
    x = tf.transpose(x, [0, *order, *range(2 * n + 1, x.shape.rank)])
    return tf.reshape(x, [-1, *shape, *inner])


def _grid(shape, block_shape):
    """Number of blocks along each dimension."""
    if len(shape) != len(block_shape) or any(d % b for d, b in zip(shape, block_shape)):
        raise ValueError(
            f"block_shape must divide the shape of the grid. Received: block_shape="
            f"{tuple(block_shape)}, shape={tuple(shape)}"
        )
    return [d // b for d, b in zip(shape, block_shape)]


def smaller(a, b):
    """The smaller of two lengths: an int if both are, else a scalar tensor."""
    return tf.minimum(a, b) if tf.is_tensor(a) or tf.is_tensor(b) else min(a, b)


def larger(a, b):
    """The larger of two lengths: an int if both are, else a scalar tensor."""
    return tf.maximum(a, b) if tf.is_tensor(a) or tf.is_tensor(b) else max(a, b)


def of_one_length(query, value, message):
    """Returns queries and values after checking that they have the same length.

    Raises:
        ValueError: with the message, if they do not. If lengths are known only at run time, the
            error is an `InvalidArgumentError`, which XLA does not check.
    """
    lengths = size(query, 2), size(value, 2)
    if any(tf.is_tensor(length) for length in lengths):
        # The check must precede operations that would fail with an unclear message.
        with tf.control_dependencies([tf.debugging.assert_equal(*lengths, message)]):
            return tf.identity(query), tf.identity(value)
    if lengths[0] != lengths[1]:
        raise ValueError(
            f"{message} Received: query of length {lengths[0]}, value of length {lengths[1]}."
        )
    return query, value
