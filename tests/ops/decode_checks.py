"""What holds the ops that decode against those that see all positions at once."""

import numpy as np
import tensorflow as tf

from tests.ops import checks


def decode(make_cache, step, inputs, count, dtype=tf.float64, **options):
    """The outputs from position `count` on, one at a time, and the last cache.

    The cache is made of more positions than count; what those hold must not matter.
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
    """What `decode` gave is what the op gives for all positions at once."""
    expected = op(**checks.tensors(inputs, dtype), causal=True, **options)[:, :, count:]
    np.testing.assert_allclose(found[0], expected, rtol=0, atol=atol)
