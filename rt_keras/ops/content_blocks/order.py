"""An order of keys in which similar ones are adjacent."""

import math

import numpy as np
import tensorflow as tf

from rt_keras.ops.attend import accumulation_dtype
from rt_keras.ops.blocks import sizes

# Number of steps towards the first principal component; more hardly change the order of keys.
POWER_ITERATIONS = 4
# An angle whose multiples have cosines that are as good as random numbers.
START_ANGLE = 2.4


def naive_content_order(key, real, places, block_size):
    """Returns the places of a segment in the order of `content_order`, in NumPy.

    `key` is `[length, depth]`, and `real` bool `[length]`, False for keys that do not count. Places
    may be beyond the length, and then do not count either.
    """

    def halve(part):
        if len(part) <= block_size:
            return part
        members = [j for j in part if j < len(key) and real[j]]
        rest = [j for j in part if j not in members]
        if members:
            centered = key[members] - key[members].mean(axis=0)
            axis = np.cos(START_ANGLE * (np.array(members) - places[0])) @ centered
            for _ in range(POWER_ITERATIONS):
                axis = centered.T @ (centered @ axis)
                axis /= np.linalg.norm(axis) or 1
            members = [members[n] for n in np.argsort(centered @ axis, kind="stable")]
        ordered = members + rest
        return halve(ordered[: len(part) // 2]) + halve(ordered[len(part) // 2 :])

    return halve(list(places))


def content_order(key, real, block_size):
    """Orders keys such that blocks of consecutive keys hold similar ones.

    The keys are halved at the median of their first principal component, and so are the halves,
    until parts have `block_size` keys. Parts are of equal size and nested, so the order is also a
    balanced binary tree. The component comes from power iterations a ← XᵀX a / |XᵀX a| from a
    fixed start, where X are the keys minus their mean.

    Args:
        key: `[..., length, depth]`. `length` is `block_size` times a power of 2.
        real: bool `[..., length]`, False for keys that do not count, which come last.
        block_size: int, number of keys in a block.

    Returns:
        int `[..., length]`, the index of the key at each place. There is no gradient.

    Source: ours; halving at the median of the first principal component: Sproull 1991, Refinements
    to Nearest-Neighbor Searching in k-Dimensional Trees.

    >>> key = tf.constant([[0.0, 1.0], [9.0, 1.0], [0.5, 1.0], [8.0, 1.0]])
    >>> order = content_order(key, tf.fill([4], True), block_size=2).numpy()
    >>> sorted(sorted(block) for block in order.reshape(2, 2).tolist())
    [[0, 2], [1, 3]]
    """
    *leading, length, depth = sizes(key)
    rows = math.prod(leading) if all(isinstance(x, int) for x in leading) else -1
    key = tf.reshape(tf.stop_gradient(key), [rows, length, depth])
    key = tf.cast(key, accumulation_dtype(key.dtype))
    real = tf.reshape(real, [rows, length])
    order = tf.broadcast_to(tf.range(length), tf.shape(real))
    part = length
    while part > block_size:
        # [parts, part, ...]
        key, real, order = (tf.reshape(x, [-1, part, *x.shape[2:]]) for x in (key, real, order))
        place = tf.argsort(_projections(key, real, order), stable=True)
        key, real, order = (tf.gather(x, place, batch_dims=1) for x in (key, real, order))
        part //= 2
    return tf.reshape(order, [*leading, length])


def _projections(key, real, order):
    """Projects keys `[parts, n, depth]` on their first principal component, `[parts, n]`.

    Those that are not real are infinity. The start depends on `order`, int `[parts, n]`, the index
    of each key in the original order, rather than on the order in a part, in which keys with almost
    equal projections change places when they are rounded differently.
    """
    weight = tf.cast(real, key.dtype)[..., None]
    total = tf.maximum(tf.reduce_sum(weight, axis=1, keepdims=True), 1.0)
    centered = (key - tf.reduce_sum(key * weight, axis=1, keepdims=True) / total) * weight
    start = tf.cos(START_ANGLE * tf.cast(order, key.dtype))
    axis = tf.einsum("pnd,pn->pd", centered, start)

    def iterate(number, axis):
        axis = tf.einsum("pnd,pn->pd", centered, tf.einsum("pnd,pd->pn", centered, axis))
        return number + 1, tf.math.l2_normalize(axis, axis=1)

    # A loop, because XLA takes twice as long to compile its steps one after the other.
    _, axis = tf.while_loop(lambda number, _: number < POWER_ITERATIONS, iterate, (0, axis))
    projections = tf.einsum("pnd,pd->pn", centered, axis)
    return tf.where(real, projections, tf.constant(math.inf, key.dtype))
