import pytest

from rt_keras.ops import causal_clustered_attention
from rt_keras.ops.causal_clustered_decode import causal_clustered_cache, causal_clustered_step
from tests.ops import checks, decode_checks


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 6])
def test_steps(count):
    inputs = checks.arrays(13, clusters=3, load_bias=True)

    def make_cache(key, value, count):
        return causal_clustered_cache(key, value, inputs["centroids"], count, block_size=4)

    found = decode_checks.decode(make_cache, causal_clustered_step, inputs, count, block_size=4)

    def op(causal, **given):
        return causal_clustered_attention(**given)

    decode_checks.same(found, op, inputs, count, block_size=4)
    decode_checks.rows_at_own_positions(
        make_cache, causal_clustered_step, op, inputs, [count, 2], block_size=4
    )


def test_bad_lengths():
    inputs = checks.tensors(checks.arrays(5, keys=7, clusters=3))
    with pytest.raises(ValueError, match="as many keys as queries.*length 5, value of length 7"):
        causal_clustered_attention(**inputs, block_size=4)
