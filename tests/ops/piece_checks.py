"""What holds the ops that attend in pieces against those that see all positions at once."""

import numpy as np
import tensorflow as tf

from tests.ops import checks


def in_pieces(cache, piece, inputs, ends, dtype=tf.float64, **options):
    """The outputs of pieces that end at these positions, and the last cache.

    Args:
        cache: the cache before the first position.
        piece: a `..._piece` op.
        inputs: dictionary of arrays.
        ends: list of ints.
        **options: further arguments of the op.
    """
    given = checks.tensors(inputs, dtype)
    token_bias = given.pop("token_bias", None)
    tensors = [given.pop(name) for name in ("query", "key", "value")]
    outputs = []
    for start, end in zip([0, *ends], ends):
        parts = [None if x is None else x[:, :, start:end] for x in tensors]
        biased = {} if token_bias is None else {"token_bias": token_bias[:, start:end]}
        output, cache = piece(*parts, cache, start, **biased, **given, **options)
        outputs.append(output)
    return np.concatenate(outputs, axis=2), cache
