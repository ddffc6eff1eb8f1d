import pytest

from rt_keras.ops import compressive_attention
from rt_keras.ops.compressive import COMPRESSIONS
from rt_keras.ops.compressive_chunk import compressive_cache, compressive_chunk
from rt_keras.ops.compressive_decode import compressive_step
from tests.ops import checks, decode_checks
from tests.ops.test_compressive import SIZES, make_inputs, make_kernels


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize(
    "far, look_back", [pytest.param(None, 1, marks=pytest.mark.end_to_end), (4, 2)]
)
def test_steps_of_rows_at_positions_of_their_own(compression, far, look_back):
    inputs = make_inputs(far)
    # The use of positions depends on the queries, and the cache is built from keys alone.
    inputs["key"] = inputs["query"]
    kernels = make_kernels() if compression == "conv" else None
    options = {**SIZES, "look_back": look_back, "compression": compression, "kernels": kernels}
    learnt = checks.tensors(inputs)
    learnt = {name: x for name, x in learnt.items() if name.endswith("embeddings")}

    def make_cache(key, value, count):
        cache = compressive_cache(key, value, **options)
        return compressive_chunk(key, key, value, cache, 0, count=count, **learnt, **options)[1]

    def op(causal, **given):
        return compressive_attention(**given)

    decode_checks.rows_at_own_positions(
        make_cache, compressive_step, op, inputs, [5, 20], **options
    )
