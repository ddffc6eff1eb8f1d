import numpy as np
import pytest

from rt_keras.ops import compressive_attention
from rt_keras.ops.compressive import COMPRESSIONS
from rt_keras.ops.compressive_chunk import compressive_cache, compressive_chunk
from tests.ops import checks, chunk_checks
from tests.ops.test_compressive import LENGTH, SIZES, make_inputs, make_kernels


def empty_cache(inputs, compression, look_back):
    options = {**SIZES, "look_back": look_back, "compression": compression}
    return compressive_cache(inputs["query"], inputs["value"], **options)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("ends", [[LENGTH], [1, 2, 13, 30, LENGTH], [12, 24, LENGTH]], ids=str)
@pytest.mark.parametrize("far, look_back", [(None, 2), (4, 1)])
def test_chunks_are_one_pass(compression, ends, far, look_back):
    inputs = make_inputs(far)
    options = {**SIZES, "look_back": look_back, "compression": compression}
    options["kernels"] = make_kernels() if compression == "conv" else None
    cache = empty_cache(inputs, compression, look_back)
    found, _ = chunk_checks.in_chunks(cache, compressive_chunk, inputs, ends, **options)
    expected = compressive_attention(**checks.tensors(inputs), **options)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("compression", ["max", "most_used"])
def test_rows_may_be_at_different_positions(compression):
    inputs = make_inputs(4)
    chunk_checks.rows_at_own_positions(
        empty_cache(inputs, compression, 1),
        compressive_chunk,
        inputs,
        [15, 24],
        11,
        compression=compression,
        **SIZES,
    )


def test_gradients_stay_in_the_chunk():
    inputs = make_inputs(4)
    chunk_checks.gradients_stay_in_the_chunk(
        empty_cache(inputs, "max", 1),
        compressive_chunk,
        compressive_attention,
        inputs,
        21,
        compression="max",
        **SIZES,
    )
