import functools

import pytest
import tensorflow as tf

from rt_keras.ops import local_attention
from rt_keras.ops.local_chunk import local_chunk
from rt_keras.ops.local_decode import local_cache
from tests.ops import checks, chunk_checks


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
