"""Checks of ops that decode against those that see all positions at once."""

import numpy as np
import tensorflow as tf

from rt_keras.ops.blocks import take_places
from tests.ops import checks


def decode(make_cache, step, inputs, count, dtype=tf.float64, **options):
    """Returns the outputs from position `count`, one at a time, and the last cache.

    The cache is built from more positions than `count`; their content must not matter.
    """
    given = checks.tensors(inputs, dtype)
    query, key, value = (given.pop(name) for name in ("query", "key", "value"))
    length = query.shape[2]
    made_of = min(count + 2, length)
    junk = tf.cast(tf.range(made_of) >= count, dtype)

    def first(x):
        return x[:, :, :made_of] + 10 * junk[:, None]

    cache = make_cache(first(query if key is None else key), first(value), count)
    outputs = []
    for position in range(count, length):
        at = slice(position, position + 1)
        one = [None if x is None else x[:, :, at] for x in (query, key, value)]
        output, cache = step(*one, cache, position, **given, **options)
        outputs.append(output)
    return np.concatenate(outputs, axis=2), cache


def same(found, op, inputs, count, atol=1e-12, dtype=tf.float64, **options):
    """Checks the result of `decode` against the op for all positions at once."""
    expected = op(**checks.tensors(inputs, dtype), causal=True, **options)[:, :, count:]
    np.testing.assert_allclose(found[0], expected, rtol=0, atol=atol)


def rows_at_own_positions(make_cache, step, op, inputs, starts, **options):
    """Checks steps of rows at different positions, and that padding does not change a cache.

    Args:
        make_cache: as that of `decode`.
        step, op: the op of one position, and that of all positions at once.
        inputs: dictionary of arrays, with a row for each of `starts`.
        starts: list of ints, where each row starts.
        **options: further arguments of both ops.
    """
    given = checks.tensors(inputs)
    expected = op(**given, causal=True, **options)
    given = {name: x for name, x in given.items() if x is not None}
    sequences = {name: given.pop(name) for name in ("query", "key", "value") if name in given}
    kept = [sequences.get("key", sequences["query"]), sequences["value"]]
    caches = [
        make_cache(*(x[row : row + 1] for x in kept), start) for row, start in enumerate(starts)
    ]
    cache = tf.nest.map_structure(lambda *x: tf.concat(x, axis=0), *caches)
    position, length, number = np.array(starts), expected.shape[2], 0
    while np.any(position < length):
        number += 1
        count = ((np.arange(len(starts)) + number) % 3 > 0) & (position < length)
        places = np.minimum(position, length - 1)[:, None]
        one = {name: take_places(x, places) for name, x in sequences.items()}
        output, after = step(
            **{"key": None, **one},
            cache=cache,
            position=tf.constant(position, tf.int32),
            count=tf.constant(count, tf.int32),
            **given,
            **options,
        )
        found, wanted = output[count], take_places(expected, places)[count]
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)
        tf.nest.map_structure(
            lambda new, old, rest=~count: np.testing.assert_array_equal(new[rest], old[rest]),
            after,
            cache,
        )
        cache, position = after, position + count
