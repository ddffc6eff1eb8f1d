import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops import full_attention
from rt_keras.ops.full_decode import full_cache, full_cross_step, full_step
from tests.ops import checks


@pytest.mark.parametrize("options", [{}, {"far": 3}], ids=str)
@pytest.mark.parametrize("padding", [None, "scattered", "a whole row"])
def test_recall(options, padding):
    inputs = checks.tensors(checks.arrays(5, keys=9, **options))
    mask = checks.mask(padding, 9)
    expected = full_attention(**inputs, key_mask=mask)
    query = inputs.pop("query")
    for position in range(5):
        # The same query twice, as two beams.
        beams = tf.repeat(query[:, :, position : position + 1], 2, axis=2)
        found = full_cross_step(beams, position=position, key_mask=mask, **inputs)
        for beam in (found[:, :, 0], found[:, :, 1]):
            np.testing.assert_allclose(beam, expected[:, :, position], rtol=0, atol=1e-12)


def test_a_position_behind_the_end():
    x = tf.zeros([1, 1, 1, 4])
    cache = full_cache(x, x, max_length=3)
    with pytest.raises(ValueError, match="holds 3 positions, 0 to 2. Received: position=3"):
        full_step(x, x, x, cache, 3)
