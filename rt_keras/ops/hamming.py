"""Groups of vectors with similar directions, found from the signs of random projections."""

import numpy as np
import tensorflow as tf

from rt_keras.ops.attend import accumulation_dtype
from rt_keras.ops.blocks import ceil_div, larger, pad_axis, size, sizes

# Bits in an integer.
WORD = 32
# Average number of vectors per group that is enough to update its centroid.
MEMBERS = 32


def naive_hamming_groups(x, projections, *, num_clusters, iterations=10, mask=None):
    """The equation of `hamming_groups`, for one sequence `[length, depth]` of a head."""
    bits = x @ projections.T > 0
    real = np.arange(0, len(x), max(1, len(x) // (MEMBERS * num_clusters)))
    real = real if mask is None else real[mask[real]]
    rows = (2 * np.arange(num_clusters) + 1) * len(real) // (2 * num_clusters)
    centroids = bits[real[rows]]
    for _ in range(iterations):
        groups = np.argmin((bits[:, None] ^ centroids).sum(axis=-1), axis=-1)
        for c in range(num_clusters):
            members = real[groups[real] == c]
            if len(members):
                centroids[c] = bits[members].mean(axis=0) > 0.5
    return np.argmin((bits[:, None] ^ centroids).sum(axis=-1), axis=-1)


def hamming_groups(x, projections, *, num_clusters, iterations=10, mask=None):
    """Groups vectors by k-means on their signs, with Lloyd's iterations in Hamming space.

    Vector i is represented by the bits `b_ip = [projection_p · x_i > 0]`. Each iteration assigns it
    to the group whose centroid differs from it in the fewest bits, or the first such group. Each
    bit of a centroid then becomes that of most members of its group. A group without members keeps
    its centroid. Centroids start as vectors evenly spaced over the sequence. In long sequences only
    every k-th vector contributes, which leaves at least 32 vectors per group on average.

    Args:
        x: `[batch, heads, length, depth]`.
        projections: `[heads, bits, depth]`, random directions.
        num_clusters: int, number of groups, at least 1.
        iterations: int, number of updates of the centroids. Defaults to 10.
        mask: bool `[batch, length]`, False for padding, which does not affect centroids; or None.

    Returns:
        int32 `[batch, heads, length]`, the group of each vector. There is no gradient.

    Source: Vyas et al. 2020, Fast Transformers with Clustered Attention, section 3.2.1.

    >>> x = tf.constant([[[[1.0, 2.0], [2.0, 1.0], [-2.0, 1.0], [-3.0, 2.0]]]])
    >>> projections = tf.constant([[[1.0, 0.0], [0.0, 1.0]]])
    >>> hamming_groups(x, projections, num_clusters=2).numpy().tolist()
    [[[0, 0, 1, 1]]]
    """
    signs = _signs(tf.stop_gradient(x), projections)
    words, real = _words(signs), None if mask is None else tf.cast(mask, tf.bool)
    step = larger(size(x, 2) // (MEMBERS * num_clusters), 1)
    some, some_words = _every(step, signs, 2), _every(step, words, 2)
    some_real = None if real is None else _every(step, real, 1)
    rows = _spread(num_clusters, some_real, some)
    centroids = tf.gather(some_words, rows, axis=2, batch_dims=2)
    for _ in range(iterations):
        groups = _nearest(some_words, centroids)
        if real is not None:
            groups = tf.where(some_real[:, None], groups, num_clusters)
        sums, counts = sums_of_groups(some, groups, num_clusters)
        centroids = tf.where(counts > 0, _words(sums), centroids)
    return _nearest(words, centroids)


def _every(step, x, axis):
    """Returns every `step`-th entry along an axis, from the first one."""
    some = x[(*[slice(None)] * axis, slice(None, None, step))]
    # The shape would be unknown if the step is a tensor.
    return tf.ensure_shape(some, [*x.shape[:axis], None, *x.shape[axis + 1 :]])


def _signs(x, projections):
    """Returns the sign of each projection of a vector, 1 or -1, `[batch, heads, length, bits]`.

    The sign of 0 is -1.
    """
    dtype = accumulation_dtype(x.dtype)
    projected = tf.einsum("bhnd,hpd->bhnp", tf.cast(x, dtype), tf.cast(projections, dtype))
    return tf.where(projected > 0, 1, -1)


def sums_of_groups(x, groups, num_clusters):
    """Computes the sum and the number of the vectors of each group in each sequence.

    Args:
        x: `[batch, heads, length, depth]`.
        groups: int32 `[batch, heads, length]`, the group of each; `num_clusters` for padding.
        num_clusters: int, number of groups.

    Returns:
        Two tensors of the dtype of `x`, `[batch, heads, groups, depth]` and
        `[batch, heads, groups, 1]`.
    """
    batch, heads, length, depth = sizes(x)
    # Padding has a separate group.
    count = num_clusters + 1
    sequences = tf.reshape(tf.range(batch * heads), [batch, heads, 1]) * count
    # A last column of ones counts.
    rows = tf.reshape(pad_axis(x, 3, 0, 1, fill=1), [batch * heads * length, depth + 1])
    segments = tf.reshape(sequences + groups, [-1])
    # This is several times faster on a CPU than a product with one-hot rows.
    sums = tf.math.unsorted_segment_sum(rows, segments, batch * heads * count)
    sums = tf.reshape(sums, [batch, heads, count, depth + 1])[:, :, :num_clusters]
    return sums[..., :-1], sums[..., -1:]


def _words(signs):
    """Packs signs `[..., bits]` into the bits of integers, `[..., words]`."""
    count = ceil_div(signs.shape[-1], WORD)
    bits = tf.cast(signs > 0, tf.int32)
    bits = pad_axis(bits, bits.shape.rank - 1, 0, count * WORD - signs.shape[-1])
    shape = [size(bits, axis) for axis in range(bits.shape.rank - 1)]
    bits = tf.reshape(bits, [*shape, count, WORD])
    return tf.reduce_sum(tf.bitwise.left_shift(bits, tf.range(WORD)), axis=-1)


def _nearest(words, centroids):
    """Finds the first centroid that differs in the fewest bits, int32 `[batch, heads, length]`."""
    differing = 0
    for word in range(words.shape[-1]):
        other = tf.bitwise.bitwise_xor(words[..., None, word], centroids[:, :, None, :, word])
        differing += tf.cast(tf.raw_ops.PopulationCount(x=other), tf.int32)
    # The minimum of (difference, centroid) as one number: XLA on a CPU vectorizes a minimum, but
    # not an argmin.
    count = centroids.shape[2]
    return tf.reduce_min(differing * count + tf.range(count), axis=-1) % count


def _spread(count, real, x):
    """Returns positions evenly spaced over those that are not padding, `[batch, heads, count]`."""
    batch, heads, length, _ = sizes(x)
    # In half steps, so that each centroid is in the middle of its share of the positions.
    shares = 2 * tf.range(count) + 1
    if real is None:
        rows = tf.broadcast_to(shares * length // (2 * count), [batch, count])
    else:
        of_row = tf.reduce_sum(tf.cast(real, tf.int32), axis=1, keepdims=True)
        in_order = tf.argsort(tf.cast(real, tf.int32), axis=1, direction="DESCENDING", stable=True)
        rows = tf.gather(in_order, shares * of_row // (2 * count), batch_dims=1)
    return tf.broadcast_to(rows[:, None], [batch, heads, count])
