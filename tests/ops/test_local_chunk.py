import functools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_keras.ops import local_attention
from rt_keras.ops.local_chunk import local_chunk
from rt_keras.ops.local_decode import local_cache
from tests.ops import checks, chunk_checks


def holds(inputs, ends, max_length=None, **options):
    blocks = {name: options[name] for name in ("block_size", "look_back")}
    given = checks.tensors(inputs)
    cache = local_cache(given["key"], given["value"], 0, max_length=max_length, **blocks)
    found, cache = chunk_checks.in_chunks(cache, local_chunk, inputs, ends, **options)
    expected = local_attention(**given, causal=True, **options)
    np.testing.assert_allclose(found, expected[:, :, : ends[-1]], rtol=0, atol=1e-12)
    return cache, expected


@settings(max_examples=12)
@given(
    ends=st.lists(st.integers(1, 24), min_size=1, max_size=4, unique=True).map(sorted),
    block_size=st.integers(1, 7),
    look_back=st.integers(0, 3),
    far=st.none() | st.integers(1, 9),
    bounded=st.booleans(),
)
def test_chunks_are_one_pass(ends, block_size, look_back, far, bounded):
    holds(
        checks.arrays(ends[-1], far=far),
        ends,
        max_length=ends[-1] if bounded else None,
        block_size=block_size,
        look_back=look_back,
    )


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
