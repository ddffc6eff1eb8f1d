import functools

import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops import local_attention
from rt_keras.ops.local_decode import local_cache, local_cross_step, local_step
from tests.ops import checks, decode_checks


@pytest.mark.parametrize("blocks", [{"look_back": 2}, {"grid": (2, 3), "look_back": (1, 2)}])
def test_rows_at_positions_of_their_own(blocks):
    blocks = {"block_size": 3, **blocks}
    make_cache = functools.partial(local_cache, **blocks)
    inputs = checks.arrays(18, far=3)
    decode_checks.rows_at_own_positions(
        make_cache, local_step, local_attention, inputs, [4, 11], **blocks
    )


def test_the_ring_holds_the_blocks_in_view_whatever_the_length():
    for length in (9, 100):
        x = tf.zeros([2, 1, length, 4])
        assert local_cache(x, x, length, block_size=4, look_back=2)["key"].shape == (2, 1, 12, 4)
    x = tf.zeros([2, 1, 5, 4])
    assert local_cache(x, x, 5, block_size=4, max_length=6)["key"].shape == (2, 1, 6, 4)


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
