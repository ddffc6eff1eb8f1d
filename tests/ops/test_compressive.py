import numpy as np
import pytest

from rt_keras.ops import compressive_attention
from rt_keras.ops.compressive import COMPRESSIONS
from rt_keras.ops.compressive_chunk import compressive_cache, compressive_chunk
from rt_keras.ops.compressive_decode import compressive_step
from tests.ops import checks, chunk_checks, decode_checks, reference

SIZES = {"block_size": 6, "compressed_length": 4, "compression_rate": 3}
LENGTH = 39


def make_inputs(far=None, **options):
    inputs = checks.arrays(LENGTH, far=far, **options)
    rng = np.random.default_rng(7)
    if far is not None:
        inputs["memory_embeddings"] = rng.normal(size=[2, SIZES["compressed_length"], 6])
    return inputs


def make_kernels():
    rng = np.random.default_rng(9)
    return {"key": rng.normal(size=[2, 3, 6, 6]), "value": rng.normal(size=[2, 3, 5, 5])}


def options_of(compression, look_back=1):
    kernels = make_kernels() if compression == "conv" else None
    return {**SIZES, "look_back": look_back, "compression": compression, "kernels": kernels}


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("length, far, look_back", [(39, 4, 2), (39, None, 1), (6, None, 3)])
def test_equation(length, far, look_back, compression):
    inputs = make_inputs(far) if length == LENGTH else checks.arrays(length)
    options = options_of(compression, look_back)
    found = compressive_attention(**checks.tensors(inputs), **options)
    expected = reference.compressive(**inputs, **options)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_chunks_and_steps_are_one_pass_with_rows_at_their_own_positions(compression):
    inputs, options = make_inputs(4), options_of(compression)
    # The use of positions depends on the queries, and the cache is built from keys alone.
    inputs["key"] = inputs["query"]
    cache = compressive_cache(inputs["query"], inputs["value"], **options)
    ends = [1, 2, 13, 30, LENGTH]
    found, _ = chunk_checks.in_chunks(cache, compressive_chunk, inputs, ends, **options)
    expected = compressive_attention(**checks.tensors(inputs), **options)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    tables = {name: x for name, x in inputs.items() if name.endswith("embeddings")}

    def make_cache(key, value, count):
        cache = compressive_cache(key, value, **options)
        return compressive_chunk(key, key, value, cache, 0, count=count, **tables, **options)[1]

    def op(causal, **given):
        return compressive_attention(**given)

    of_ops = (make_cache, compressive_step, op)
    decode_checks.rows_at_own_positions(*of_ops, inputs, [15, 24], **options)
