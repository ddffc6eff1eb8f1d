import functools

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_keras.ops import local_attention
from rt_keras.ops.local_chunk import local_chunk
from rt_keras.ops.local_decode import local_cache, local_step
from tests.ops import checks, chunk_checks


@pytest.mark.slow
@settings(max_examples=20, derandomize=True)
@given(
    length=st.integers(1, 24),
    block_size=st.integers(1, 7),
    look_back=st.integers(0, 3),
    far=st.none() | st.integers(1, 9),
    bounded=st.booleans(),
    data=st.data(),
)
def test_a_prompt_chunks_and_steps_are_one_pass(length, block_size, look_back, far, bounded, data):
    blocks = {"block_size": block_size, "look_back": look_back}

    def make_cache(key, value, count):
        return local_cache(key, value, count, max_length=length if bounded else None, **blocks)

    ends = data.draw(st.lists(st.integers(0, length), min_size=1, max_size=4).map(sorted))
    inputs, ops = checks.arrays(length, far=far), (local_chunk, local_step, local_attention)
    chunk_checks.goes_on(make_cache, *ops, inputs, sorted(set(ends)), {}, **blocks)


def test_a_grid_has_no_chunks():
    x = tf.zeros([1, 1, 8, 4])
    cache = local_cache(x, x, 0, block_size=4, grid=(2, 1))
    with pytest.raises(ValueError, match=r"grid=\(2, 1\)"):
        local_chunk(x, x, x, cache, 0, block_size=4, grid=(2, 1))


def test_gradients_stay_in_the_chunk():
    inputs = checks.arrays(30, far=5)
    given = checks.tensors(inputs)
    cache = local_cache(given["key"], given["value"], 0, block_size=4)
    whole = functools.partial(local_attention, causal=True)
    chunk_checks.gradients_stay_in_the_chunk(cache, local_chunk, whole, inputs, 17, block_size=4)
