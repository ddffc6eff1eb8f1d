"""Checks of ops that attend in chunks against those that see all positions at once."""

import numpy as np
import tensorflow as tf

from tests.ops import checks


def in_chunks(cache, chunk, inputs, ends, dtype=tf.float64, **options):
    """Returns the outputs of chunks that end at these positions, and the last cache.

    Args:
        cache: the cache before the first position.
        chunk: a `..._chunk` op.
        inputs: dictionary of arrays.
        ends: list of ints.
        **options: further arguments of the op.
    """
    given = checks.tensors(inputs, dtype)
    tensors = [given.pop(name) for name in ("query", "key", "value")]
    outputs = []
    for start, end in zip([0, *ends], ends):
        parts = [None if x is None else x[:, :, start:end] for x in tensors]
        output, cache = chunk(*parts, cache, start, **given, **options)
        outputs.append(output)
    return np.concatenate(outputs, axis=2), cache


def gradients_stay_in_the_chunk(cache, chunk, whole, inputs, start, **options):
    """Checks the gradient of a chunk against that of one pass with constant earlier positions.

    Args:
        cache: the cache before the first position.
        chunk: a `..._chunk` op.
        whole: the op that sees all positions at once, of the same arguments.
        inputs: dictionary of arrays.
        start: int, where the chunk starts.
        **options: arguments of the chunk that are no arrays.
    """
    names = [name for name in ("query", "key", "value") if inputs[name] is not None]
    learnt = {name: x for name, x in checks.tensors(inputs).items() if name not in names}
    learnt.pop("key", None)
    before = {name: tf.constant(inputs[name][:, :, :start]) for name in names}
    after = {name: tf.constant(inputs[name][:, :, start:]) for name in names}
    missing = {} if "key" in names else {"key": None}
    _, cache = chunk(**before, **missing, cache=cache, position=0, **learnt, **options)

    def by_chunk():
        return chunk(**after, **missing, cache=cache, position=start, **learnt, **options)[0]

    def by_whole():
        joined = {name: tf.concat([before[name], after[name]], axis=2) for name in names}
        return whole(**joined, **missing, **learnt, **options)[:, :, start:]

    gradients = []
    for function in (by_chunk, by_whole):
        with tf.GradientTape() as tape:
            tape.watch([after, learnt])
            loss = tf.reduce_sum(tf.sin(3 * function()))
        found = tape.gradient(loss, [after, learnt], unconnected_gradients="zero")
        gradients.append(found)
    tf.nest.map_structure(
        lambda x, y: np.testing.assert_allclose(
            tf.convert_to_tensor(x), tf.convert_to_tensor(y), rtol=0, atol=1e-11
        ),
        *gradients,
    )
