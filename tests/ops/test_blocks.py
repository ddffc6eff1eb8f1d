import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_keras.ops import blocks


def sequence(length, trailing=(3,)):
    return np.random.default_rng(0).normal(size=(2, 3, length, *trailing))


def test_repeat_heads():
    x = sequence(5)
    np.testing.assert_array_equal(blocks.repeat_heads(x, 6), x.repeat(2, axis=1))
    np.testing.assert_array_equal(blocks.repeat_heads(x, 4, axis=0), x.repeat(2, axis=0))
    assert blocks.repeat_heads(x, 3) is x and blocks.repeat_heads(None, 3) is None

    @tf.function(input_signature=[tf.TensorSpec([None, 3, None])])
    def repeat(x):
        return blocks.repeat_heads(x, 6)

    assert repeat.get_concrete_function().output_shapes.as_list() == [None, 6, None]


def test_fold_heads():
    x = sequence(5)[:, :2]
    folded = blocks.fold_heads(x, 1)
    np.testing.assert_array_equal(folded, np.concatenate([x[:, :1], x[:, 1:]], axis=2))
    np.testing.assert_array_equal(blocks.fold_heads(folded, 2), x)


@pytest.mark.parametrize("length, trailing", [(1, ()), (7, (3,)), (8, (3, 2))])
def test_split_and_join(length, trailing):
    x = sequence(length, trailing)
    split = blocks.split_blocks(tf.constant(x), 2, 4, fill=9)
    padded = np.pad(
        x, [(0, 0)] * 2 + [(0, 8 - length)] + [(0, 0)] * len(trailing), constant_values=9
    )
    np.testing.assert_array_equal(split, padded.reshape(2, 3, 2, 4, *trailing))
    np.testing.assert_array_equal(blocks.join_blocks(split, length), x)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    length=st.integers(1, 20), block_size=st.integers(1, 6), count=st.integers(1, 4), data=st.data()
)
def test_overlapping_blocks(length, block_size, count, data):
    offset = data.draw(st.integers(0, (count - 1) * block_size))
    num_blocks = -(-length // block_size)
    x = sequence(length) + 1
    found = blocks.overlapping_blocks(tf.constant(x), num_blocks, block_size, count, offset)
    assert found.shape == (2, 3, num_blocks, count * block_size, 3)
    for block, place in np.ndindex(num_blocks, count * block_size):
        position = block * block_size - offset + place
        expected = x[:, :, position] if 0 <= position < length else 0
        np.testing.assert_array_equal(
            found[:, :, block, place], np.broadcast_to(expected, (2, 3, 3))
        )


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


def test_to_blocks_of_an_unknown_batch():
    @tf.function(input_signature=[tf.TensorSpec([None, 4, 6])])
    def there_and_back(x):
        in_blocks = blocks.to_blocks(x, (2, 3))
        assert in_blocks.shape == (None, 24)
        return blocks.from_blocks(in_blocks, (2, 3), (4, 6))

    x = np.arange(48, dtype="float32").reshape(2, 4, 6)
    np.testing.assert_array_equal(there_and_back(x), x)


@pytest.mark.parametrize("block_shape", [(2, 2), (3,)])
def test_blocks_that_do_not_tile(block_shape):
    with pytest.raises(ValueError, match="block_shape must divide the shape of the grid"):
        blocks.from_blocks(tf.zeros([1, 15]), block_shape, (5, 3))
    with pytest.raises(ValueError, match="block_shape must divide the shape of the grid"):
        blocks.to_blocks(tf.zeros([1, 5, 3]), (2, 3))


def test_gradient_of_gather_rows_is_read_where_the_inverse_says():
    # Row 0 is read twice, and nothing depends on the second reading.
    x = tf.constant(sequence(2))
    index = np.broadcast_to([0, 1, 0], (2, 3, 3))
    inverse = np.broadcast_to([0, 1], (2, 3, 2))
    with tf.GradientTape() as tape:
        tape.watch(x)
        found = blocks.gather_rows(x, index, inverse) * [[1.0], [2.0], [0.0]]
    gradient = tape.gradient(found, x)
    np.testing.assert_array_equal(gradient, np.broadcast_to([[1.0], [2.0]], (2, 3, 2, 3)))
