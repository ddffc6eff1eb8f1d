import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops import local_attention
from rt_keras.ops.local_decode import local_cross_step
from tests.ops import checks


@pytest.mark.parametrize(
    "keys, options",
    [
        (9, {"block_size": 4, "sliding_window": 3}),
        (6, {"block_size": 4, "key_block_size": 2}),
        (6, {"block_size": 4, "key_block_size": 2, "key_mask": checks.mask("right", 6)}),
        (6, {"block_size": 4, "key_block_size": 2, "key_mask": checks.mask("a whole row", 6)}),
    ],
)
def test_cross_step(keys, options):
    inputs = checks.tensors(checks.arrays(9, keys=keys, far=2))
    expected = local_attention(**inputs, **options)
    query = inputs.pop("query")
    for position in range(9):
        beams = tf.repeat(query[:, :, position : position + 1], 2, axis=2)
        found = local_cross_step(beams, position=position, **inputs, **options)
        for beam in (found[:, :, 0], found[:, :, 1]):
            np.testing.assert_allclose(beam, expected[:, :, position], rtol=0, atol=1e-12)
