import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_keras.ops import blocks


@st.composite
def images(draw):
    """An image, and the shape of blocks that tile it."""
    block_shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    shape = [side * draw(st.integers(1, 3)) for side in block_shape]
    trailing = draw(st.sampled_from([(), (2,)]))
    return np.random.default_rng(0).normal(size=(2, *shape, *trailing)), tuple(block_shape)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(case=images())
def test_to_blocks_and_back(case):
    x, block_shape = case
    n = len(block_shape)
    shape, trailing = x.shape[1 : n + 1], x.shape[n + 1 :]
    found = blocks.to_blocks(tf.constant(x), block_shape)
    assert found.shape == (2, np.prod(shape), *trailing)
    position = 0
    for block in np.ndindex(*(side // inner for side, inner in zip(shape, block_shape))):
        for inner in np.ndindex(*block_shape):
            place = tuple(np.multiply(block, block_shape) + inner)
            np.testing.assert_array_equal(found[:, position], x[(slice(None), *place)])
            position += 1
    np.testing.assert_array_equal(blocks.from_blocks(found, block_shape, shape), x)


@pytest.mark.parametrize("block_shape", [(2, 2), (3,)])
def test_blocks_that_do_not_tile(block_shape):
    with pytest.raises(ValueError, match="block_shape must divide the shape of the grid"):
        blocks.from_blocks(tf.zeros([1, 15]), block_shape, (5, 3))
    with pytest.raises(ValueError, match="block_shape must divide the shape of the grid"):
        blocks.to_blocks(tf.zeros([1, 5, 3]), (2, 3))
