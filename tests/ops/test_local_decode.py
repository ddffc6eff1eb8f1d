import functools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_keras.ops import local_attention
from rt_keras.ops.local_decode import local_cache, local_cross_step, local_step
from tests.ops import checks, decode_checks


def holds(inputs, count, max_length=None, **blocks):
    def make_cache(key, value, count):
        return local_cache(key, value, count, max_length=max_length, **blocks)

    found = decode_checks.decode(make_cache, local_step, inputs, count, **blocks)
    decode_checks.same(found, local_attention, inputs, count, **blocks)


@settings(max_examples=30)
@given(
    length=st.integers(1, 20),
    block_size=st.integers(1, 7),
    look_back=st.integers(0, 3),
    far=st.none() | st.integers(1, 9),
    bounded=st.booleans(),
    data=st.data(),
)
def test_steps(length, block_size, look_back, far, bounded, data):
    holds(
        checks.arrays(length, far=far),
        data.draw(st.integers(0, length - 1)),
        max_length=length if bounded else None,
        block_size=block_size,
        look_back=look_back,
    )


def test_steps_on_a_grid():
    holds(checks.arrays(18, far=3), 0, block_size=3, grid=(2, 3), look_back=(1, 2))


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


def test_cross_step_of_a_sliding_window():
    inputs = checks.tensors(checks.arrays(9, keys=9, far=2))
    options = {"block_size": 4, "sliding_window": 3}
    expected = local_attention(**inputs, **options)
    query = inputs.pop("query")
    for position in range(9):
        one = query[:, :, position : position + 1]
        found = local_cross_step(one, position=position, **inputs, **options)
        np.testing.assert_allclose(found[:, :, 0], expected[:, :, position], rtol=0, atol=1e-12)


@pytest.mark.parametrize("padding", [None, "right", "a whole row"])
def test_cross_step(padding):
    inputs = checks.tensors(checks.arrays(9, keys=6, far=2))
    mask = checks.mask(padding, 6)
    options = {"block_size": 4, "key_block_size": 2, "key_mask": mask}
    expected = local_attention(**inputs, **options)
    query = inputs.pop("query")
    for position in range(9):
        beams = tf.repeat(query[:, :, position : position + 1], 2, axis=2)
        found = local_cross_step(beams, position=position, **inputs, **options)
        for beam in (found[:, :, 0], found[:, :, 1]):
            np.testing.assert_allclose(beam, expected[:, :, position], rtol=0, atol=1e-12)


def test_cross_step_of_a_span():
    inputs = checks.tensors({**checks.arrays(9, keys=9), "span": np.array([0.0, 2.2])})
    options = {"block_size": 4, "span_ramp": 3}
    expected = local_attention(**inputs, **options)
    query = inputs.pop("query")
    found = local_cross_step(query[:, :, 5:6], position=5, **inputs, **options)
    np.testing.assert_allclose(found[:, :, 0], expected[:, :, 5], rtol=0, atol=1e-12)
